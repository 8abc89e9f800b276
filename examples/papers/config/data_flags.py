"""The flags of a recipe's data, group by group."""

from absl import flags

# Flags are those of the script that is run: its --help lists them.
flags.disclaim_key_flags()


def define_data(values):
    put = {"flag_values": values}
    flags.DEFINE_string("setup", "custom", "Name of the set-up.", **put)
    flags.DEFINE_enum(
        "task",
        "classification",
        ["classification", "segmentation", "text", "detection"],
        "Kind of task, and so the script that trains the set-up.",
        **put,
    )
    flags.DEFINE_string(
        "data",
        "digits",
        "'digits' of scikit-learn; the name of a TFDS data set; an .npz file "
        "with train_images, train_labels, test_images, test_labels; "
        "'tiny_imagenet', whose folder is --data_dir; 'newsgroups20'. For "
        "detectors, a TFDS data set with boxes of all objects, or "
        "canvases/NAME.",
        **put,
    )
    flags.DEFINE_string(
        "test_split",
        None,
        "Name of the split to test on. Defaults to 'test' if it exists.",
        **put,
    )
    flags.DEFINE_float(
        "validation",
        1 / 6,
        "Validation data to hold out of the training data: a share below 1, "
        "or a number of samples.",
        lower_bound=0.0,
        **put,
    )
    flags.DEFINE_enum(
        "validation_of",
        "train",
        ["train", "test"],
        "Part of the data that validation data are held out of.",
        **put,
    )
    flags.DEFINE_bool(
        "random_split",
        False,
        "Draw the validation images of scenes by --seed; otherwise the first "
        "ones are taken. Data in memory are always drawn.",
        **put,
    )
    flags.DEFINE_float(
        "test_share",
        None,
        "Draw training and test data in memory anew by --seed, with this "
        "share for tests. Without it the official split is used.",
        lower_bound=0.0,
        upper_bound=1.0,
        **put,
    )
    flags.DEFINE_bool(
        "extra_annotations",
        False,
        "Train on the images of VOC's trainaug.txt, which adds SBD.",
        **put,
    )
    flags.DEFINE_bool(
        "stratified",
        False,
        "Hold out equally many validation samples of each class.",
        **put,
    )
    flags.DEFINE_list(
        "image_size",
        [],
        "Height and width of the images, or one number for both.",
        **put,
    )
    flags.DEFINE_integer(
        "resize",
        None,
        "Length of the shorter side, to which images are resized before crops.",
        **put,
    )
    flags.DEFINE_enum(
        "interpolation",
        "bilinear",
        ["bilinear", "bicubic"],
        "Method that resizes images read from disk.",
        **put,
    )
    flags.DEFINE_bool(
        "antialias",
        False,
        "Filter images before they are shrunk, as Pillow does.",
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
        "Augmentation. crop: the image is cropped after 4 pixels of zeros "
        "are added on each side; shift: it moves by up to a tenth of the "
        "side; flip: left to right; resized_crop: a crop of the share "
        "--scale to 1, flipped.",
        **put,
    )
    flags.DEFINE_float(
        "scale",
        0.08,
        "Smallest share of the image that a resized crop takes.",
        **put,
    )
    flags.DEFINE_float(
        "jitter", 0.0, "Strength of the colour jitter; 0 for none.", **put
    )
    flags.DEFINE_enum(
        "normalize",
        "standard",
        ["unit", "centered", "standard", "imagenet"],
        "Normalisation. unit: pixels in [0, 1]; centered: the mean training "
        "image is subtracted; standard: channels have mean 0 and standard "
        "deviation 1 over the training data; imagenet: mean and deviation "
        "are those of ImageNet, as always for images that are read from disk.",
        **put,
    )
    flags.DEFINE_enum(
        "objects",
        None,
        ["boxes", "mask"],
        "Source of the objectness for adaptive label smoothing.",
        **put,
    )
    flags.DEFINE_bool(
        "alone",
        False,
        "Train on each object by itself, with the others painted over.",
        **put,
    )
    flags.DEFINE_string(
        "class_map",
        None,
        "JSON file that merges and drops classes: OpenImages' hierarchy, "
        "whose leaves are kept, or an object with 'merge' (class to class), "
        "'drop' (classes) and 'hierarchy' (path of such a hierarchy).",
        **put,
    )
    flags.DEFINE_integer(
        "cap_classes",
        None,
        "Largest number of training images of a class; the first ones are "
        "kept.",
        lower_bound=1,
        **put,
    )
    flags.DEFINE_integer(
        "sequence_length", 1000, "Number of tokens of a text.", **put
    )
    flags.DEFINE_enum(
        "tokens",
        "words",
        ["words", "keras"],
        "words: the first words, numbers and punctuation marks of a text; "
        "keras: the last words of a text without its head that are in the "
        "vocabulary, as Keras' Tokenizer and pad_sequences give them.",
        **put,
    )
    flags.DEFINE_integer(
        "num_words",
        20_000,
        "Number of words in the vocabulary.",
        lower_bound=2,
        **put,
    )
    flags.DEFINE_integer(
        "ignore_class",
        None,
        "Class id of pixels without a label, which are ignored.",
        **put,
    )
    flags.DEFINE_integer(
        "pixels_per_image",
        5000,
        "Number of labelled pixels of each test image whose logits are kept.",
        **put,
    )
    flags.DEFINE_bool(
        "before_interpolation",
        False,
        "Keep the logits before the last interpolation, with the nearest "
        "labels. All measures but mIoU and the second ECE and AECE are of "
        "these.",
        **put,
    )
    flags.DEFINE_integer(
        "background",
        None,
        "Class id whose pixels a second ECE and AECE leave out; their "
        "columns have _foreground in the names.",
        **put,
    )
    flags.DEFINE_enum(
        "per",
        "all",
        ["all", "image", "batch"],
        "Unit over which the second ECE and AECE are measured, then averaged "
        "by the number of pixels: columns have _per_image or _per_batch in "
        "the names.",
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
        "Temperatures among which the one of least ECE is chosen. Defaults "
        "to 0.1, 0.2 ... 10.",
        flag_values=values,
    )
