"""The flags of a recipe, group by group."""

from absl import flags

__all__ = [
    "define_data",
    "define_method",
    "define_network",
    "define_optimizer",
    "define_options",
    "define_temperatures",
]

# Flags are those of the script that is run: its --help lists them.
flags.disclaim_key_flags()


def define_data(values):
    put = {"flag_values": values}
    flags.DEFINE_string("setup", "custom", "Name of the set-up.", **put)
    flags.DEFINE_enum(
        "task",
        "classification",
        ["classification", "segmentation", "text", "detection"],
        "Which script trains it.",
        **put,
    )
    flags.DEFINE_string(
        "data",
        "digits",
        "'digits' of scikit-learn; the name of a TFDS data set; an .npz file "
        "with train_images, train_labels, test_images, test_labels; "
        "'tiny_imagenet', its folder; 'newsgroups20'; of detectors, "
        "a TFDS data set with boxes of all objects, or canvases/NAME, of one.",
        **put,
    )
    flags.DEFINE_string(
        "test_split", None, "The split to test on; test if it is there.", **put
    )
    flags.DEFINE_float(
        "validation",
        1 / 6,
        "Held out of the training data: a share below 1, or how many.",
        lower_bound=0.0,
        **put,
    )
    flags.DEFINE_enum(
        "validation_of",
        "train",
        ["train", "test"],
        "Of which part of the data validation data are held out.",
        **put,
    )
    flags.DEFINE_bool(
        "random_split",
        False,
        "Of scenes, draw the images of --validation by --seed, rather than "
        "take the first. Of data in memory they are drawn.",
        **put,
    )
    flags.DEFINE_float(
        "test_share",
        None,
        "Of data in memory, draw training and test data anew from both by "
        "--seed, this share for tests; else the official split.",
        lower_bound=0.0,
        upper_bound=1.0,
        **put,
    )
    flags.DEFINE_bool(
        "extra_annotations", False, "Train on VOC's trainaug.txt.", **put
    )
    flags.DEFINE_bool("stratified", False, "As many of each class.", **put)
    flags.DEFINE_list(
        "image_size", [], "Height and width, or one number.", **put
    )
    flags.DEFINE_integer("resize", None, "Shorter side, before crops.", **put)
    flags.DEFINE_enum(
        "interpolation",
        "bilinear",
        ["bilinear", "bicubic"],
        "How images that are read from disk are resized.",
        **put,
    )
    flags.DEFINE_bool(
        "antialias",
        False,
        "Resize them over as many pixels as are shrunk into one, as Pillow "
        "does.",
        **put,
    )
    flags.DEFINE_enum(
        "augment",
        "none",
        [
            "none",
            "flip",
            "crop",
            "shift",
            "shift_flip",
            "crop_flip",
            "resized_crop",
        ],
        "crop: of the image with 4 pixels of zeros on each side; shift: by up "
        "to a tenth of the side; flip: left to right; resized_crop: of the "
        "share --scale to 1, flipped.",
        **put,
    )
    flags.DEFINE_float("scale", 0.08, "Least share of a resized crop.", **put)
    flags.DEFINE_float("jitter", 0.0, "Strength of colour jitter.", **put)
    flags.DEFINE_enum(
        "normalize",
        "standard",
        ["unit", "centered", "standard", "imagenet"],
        "unit: pixels in [0, 1]; centered: less the mean training image; "
        "standard: less the mean, by the standard deviation of each channel of "
        "the training data; imagenet: those of ImageNet, as of all images that "
        "are not in memory.",
        **put,
    )
    flags.DEFINE_enum(
        "objects",
        None,
        ["boxes", "mask"],
        "What adaptive label smoothing measures objects by.",
        **put,
    )
    flags.DEFINE_bool(
        "alone", False, "Each object by itself, the others painted over.", **put
    )
    flags.DEFINE_string(
        "class_map",
        None,
        "JSON file: OpenImages' hierarchy, of which the leaves are kept; or "
        "'merge' (class to class), 'drop' (classes) and 'hierarchy' (such a "
        "file).",
        **put,
    )
    flags.DEFINE_integer(
        "cap_classes",
        None,
        "Most training images of a class; the first are kept.",
        lower_bound=1,
        **put,
    )
    flags.DEFINE_integer("sequence_length", 1000, "Tokens of a text.", **put)
    flags.DEFINE_enum(
        "tokens",
        "words",
        ["words", "keras"],
        "words, numbers and punctuation, the first of a text; or as Keras' "
        "Tokenizer and pad_sequences read texts without their heads: words of "
        "the vocabulary alone, the last of a text.",
        **put,
    )
    flags.DEFINE_integer(
        "num_words", 20_000, "Size of the vocabulary.", lower_bound=2, **put
    )
    flags.DEFINE_integer(
        "ignore_class", None, "Class id of pixels that do not count.", **put
    )
    flags.DEFINE_integer(
        "pixels_per_image",
        5000,
        "Labelled pixels of a test image whose logits are kept.",
        **put,
    )
    flags.DEFINE_bool(
        "before_interpolation",
        False,
        "Keep logits as they are before the last interpolation, with the "
        "labels nearest to them; all measures but mIoU and the second ECE and "
        "AECE are of these.",
        **put,
    )
    flags.DEFINE_integer(
        "background",
        None,
        "Class id whose pixels a second ECE and AECE leave out; columns then "
        "have _foreground in their names.",
        **put,
    )
    flags.DEFINE_enum(
        "per",
        "all",
        ["all", "image", "batch"],
        "What the second ECE and AECE of pixels are measured on, then averaged "
        "by the number of pixels: columns with _per_image or _per_batch.",
        **put,
    )
    define_temperatures(values)


def define_temperatures(values):
    """Defines what calibrate.py has too."""
    if "temperatures" in values:
        return
    flags.DEFINE_list(
        "temperatures",
        [],
        "What the temperature by ECE is chosen from; 0.1, 0.2 ... 10 if none.",
        flag_values=values,
    )


def define_network(values):
    put = {"flag_values": values}
    flags.DEFINE_string("net", "dense", "See nets/catalogue.py.", **put)
    flags.DEFINE_enum(
        "weights", None, ["imagenet"], "Where training begins.", **put
    )
    flags.DEFINE_float(
        "dropout", None, "Of networks that have it; theirs if none.", **put
    )
    flags.DEFINE_bool(
        "train_vectors", False, "Train the vectors of words too.", **put
    )
    flags.DEFINE_integer("pool_stride", 1, "Of gpcn's poolings.", **put)
    flags.DEFINE_integer("output_stride", 16, "Of segmenters.", **put)
    flags.DEFINE_bool(
        "synchronized",
        False,
        "With --strategy=mirrored, batch normalization by the statistics of "
        "the whole batch, as on one device.",
        **put,
    )


def define_optimizer(values):
    put = {"flag_values": values}
    flags.DEFINE_integer("batch_size", 64, "Samples of a step.", **put)
    flags.DEFINE_integer("epochs", 30, "Passes over the data.", **put)
    flags.DEFINE_enum(
        "optimizer", "sgd", ["sgd", "adam", "adamw"], "Its kind.", **put
    )
    flags.DEFINE_float("learning_rate", 0.1, "At its highest.", **put)
    flags.DEFINE_float("momentum", 0.9, "Of SGD.", **put)
    flags.DEFINE_bool("nesterov", False, "Of SGD.", **put)
    flags.DEFINE_float(
        "coupled_decay",
        0.0,
        "Weight decay as torch's SGD has it: added to the gradient.",
        **put,
    )
    flags.DEFINE_float("weight_decay", 0.0, "Decoupled; of AdamW.", **put)
    flags.DEFINE_enum(
        "schedule",
        "constant",
        ["constant", "steps", "cosine", "poly"],
        "What the learning rate does.",
        **put,
    )
    flags.DEFINE_list("decay_epochs", [], "Where steps are.", **put)
    flags.DEFINE_float("decay_factor", 0.1, "What a step multiplies by.", **put)
    flags.DEFINE_integer("warmup_epochs", 0, "Linear, from zero.", **put)
    flags.DEFINE_float("power", 0.9, "Of the poly schedule.", **put)
    flags.DEFINE_float(
        "time_decay",
        0.0,
        "d of a rate that is divided by 1 + d step, as `decay` of Keras 2 was.",
        **put,
    )
    flags.DEFINE_float(
        "backbone_rate", 1.0, "Multiplies the rate of the backbone.", **put
    )
    flags.DEFINE_float("clip_norm", None, "Largest gradient norm.", **put)
    flags.DEFINE_float(
        "sam_rho", 0.0, "Radius of sharpness-aware minimisation.", **put
    )
    flags.DEFINE_enum(
        "keep",
        "last",
        ["last", "best"],
        "Weights of the last epoch, or of that with the best validation "
        "accuracy.",
        **put,
    )
    flags.DEFINE_float(
        "margin",
        10.0,
        "Of ACLS, MbLS and CRLMargin; papers choose it by data.",
        **put,
    )


def define_method(values):
    put = {"flag_values": values}
    flags.DEFINE_string("method", "cross_entropy", "Name in tables.", **put)
    flags.DEFINE_string("loss", "CrossEntropy", "Class of the loss.", **put)
    flags.DEFINE_multi_string("loss_option", [], "Argument of it.", **put)
    flags.DEFINE_string("fidelity", None, "Loss inside a batch loss.", **put)
    flags.DEFINE_multi_string("fidelity_option", [], "Argument of it.", **put)
    flags.DEFINE_string("train_model", None, "Class that trains.", **put)
    flags.DEFINE_multi_string("model_option", [], "Argument of it.", **put)
    flags.DEFINE_enum("mix", None, ["cutmix", "mixup", "ricap"], "", **put)
    flags.DEFINE_float("mix_share", 1.0, "Share of mixed batches.", **put)
    flags.DEFINE_float(
        "context_share", 0.0, "Share of images without their objects.", **put
    )


def define_options(values):
    put = {"flag_values": values}
    flags.DEFINE_string("data_dir", None, "Folder of the data.", **put)
    flags.DEFINE_string(
        "annotations", None, "Folder of VOC files with boxes.", **put
    )
    flags.DEFINE_string("vectors", None, "File of GloVe's vectors.", **put)
    flags.DEFINE_bool("download", False, "Download into --data_dir.", **put)
    flags.DEFINE_integer("seed", 0, "Of all random numbers.", **put)
    flags.DEFINE_enum(
        "strategy",
        "none",
        ["none", "mirrored"],
        "mirrored: on all GPUs of the machine, which share each batch.",
        **put,
    )
    flags.DEFINE_integer(
        "logical_devices",
        None,
        "Split the CPU into so many devices, to try mirrored without GPUs.",
        lower_bound=1,
        **put,
    )
    flags.DEFINE_enum(
        "precision",
        "float32",
        ["float32", "mixed_bfloat16", "mixed_float16"],
        "Of the network; losses and metrics are float32.",
        **put,
    )
    flags.DEFINE_integer(
        "steps_per_epoch", None, "Fewer steps, for a trial.", **put
    )
    flags.DEFINE_bool("jit", False, "Compile steps by XLA.", **put)
    flags.DEFINE_bool("resume", False, "Go on from --workdir.", **put)
    flags.DEFINE_bool("tensorboard", False, "Write event files.", **put)
    flags.DEFINE_bool("export", True, "Write a SavedModel.", **put)
    flags.DEFINE_string("workdir", "work/runs", "For results.", **put)
    flags.DEFINE_integer("verbose", 2, "As of fit.", **put)
