"""The flags of a recipe's network and training, group by group."""

from absl import flags

# Flags are those of the script that is run: its --help lists them.
flags.disclaim_key_flags()


def define_network(values):
    put = {"flag_values": values}
    flags.DEFINE_string(
        "net", "dense", "Name of the network, from nets/catalogue.py.", **put
    )
    flags.DEFINE_enum(
        "weights",
        None,
        ["imagenet"],
        "Pretrained weights to begin with; random ones by default.",
        **put,
    )
    flags.DEFINE_float(
        "dropout",
        None,
        "Dropout rate of networks with dropout layers. Defaults to that "
        "of the network.",
        **put,
    )
    flags.DEFINE_bool(
        "train_vectors", False, "Train the word vectors too.", **put
    )
    flags.DEFINE_integer(
        "pool_stride",
        1,
        "Stride of the pooling layers of the network gpcn.",
        **put,
    )
    flags.DEFINE_integer(
        "output_stride",
        16,
        "Stride of the features of segmenters, in pixels.",
        **put,
    )
    flags.DEFINE_bool(
        "synchronized",
        False,
        "Normalise by the statistics of the whole batch with "
        "--strategy=mirrored, as one device does.",
        **put,
    )


def define_optimizer(values):
    put = {"flag_values": values}
    flags.DEFINE_integer(
        "batch_size",
        64,
        "Number of samples in a step, of all devices together.",
        **put,
    )
    flags.DEFINE_integer(
        "epochs", 30, "Number of passes over the training data.", **put
    )
    flags.DEFINE_enum(
        "optimizer",
        "sgd",
        ["sgd", "adam", "adamw"],
        "Kind of the optimizer.",
        **put,
    )
    flags.DEFINE_float(
        "learning_rate", 0.1, "Highest learning rate of the schedule.", **put
    )
    flags.DEFINE_float("momentum", 0.9, "Momentum of SGD.", **put)
    flags.DEFINE_bool(
        "nesterov", False, "Use Nesterov's momentum in SGD.", **put
    )
    flags.DEFINE_float(
        "coupled_decay",
        0.0,
        "Weight decay that is added to the gradient, as in torch's SGD.",
        **put,
    )
    flags.DEFINE_float(
        "weight_decay", 0.0, "Decoupled weight decay of AdamW.", **put
    )
    flags.DEFINE_enum(
        "schedule",
        "constant",
        ["constant", "steps", "cosine", "poly"],
        "Schedule of the learning rate.",
        **put,
    )
    flags.DEFINE_list(
        "decay_epochs",
        [],
        "Epochs at which the learning rate drops, for --schedule=steps.",
        **put,
    )
    flags.DEFINE_float(
        "decay_factor", 0.1, "Factor of the learning rate at each drop.", **put
    )
    flags.DEFINE_integer(
        "warmup_epochs",
        0,
        "Epochs in which the learning rate rises linearly from 0.",
        **put,
    )
    flags.DEFINE_float("power", 0.9, "Exponent of the poly schedule.", **put)
    flags.DEFINE_float(
        "time_decay",
        0.0,
        "Number d: the rate is divided by 1 + d step, as by `decay` of Keras "
        "2.",
        **put,
    )
    flags.DEFINE_float(
        "backbone_rate",
        1.0,
        "Factor of the learning rate of the backbone.",
        **put,
    )
    flags.DEFINE_float(
        "clip_norm",
        None,
        "Largest norm of the gradient; larger ones are scaled down.",
        **put,
    )
    flags.DEFINE_float(
        "sam_rho",
        0.0,
        "Radius of sharpness-aware minimisation; 0 for none.",
        **put,
    )
    flags.DEFINE_enum(
        "keep",
        "last",
        ["last", "best"],
        "Weights to keep: those of the last epoch, or of the best validation "
        "accuracy.",
        **put,
    )
    flags.DEFINE_float(
        "margin",
        10.0,
        "Margin of ACLS, MbLS and CRLMargin, which papers choose by data set.",
        **put,
    )


def define_method(values):
    put = {"flag_values": values}
    flags.DEFINE_string(
        "method",
        "cross_entropy",
        "Name of the method in tables and folders.",
        **put,
    )
    flags.DEFINE_string(
        "loss", "CrossEntropy", "Class of the loss, or CrossEntropy.", **put
    )
    flags.DEFINE_multi_string(
        "loss_option", [], "Argument of the loss: name=value.", **put
    )
    flags.DEFINE_string(
        "fidelity",
        None,
        "Class of the per-sample loss inside a batch loss.",
        **put,
    )
    flags.DEFINE_multi_string(
        "fidelity_option", [], "Argument of --fidelity: name=value.", **put
    )
    flags.DEFINE_string(
        "train_model",
        None,
        "Class of the model that trains, of keras_calib.",
        **put,
    )
    flags.DEFINE_multi_string(
        "model_option", [], "Argument of --train_model: name=value.", **put
    )
    flags.DEFINE_enum(
        "mix",
        None,
        ["cutmix", "mixup", "ricap"],
        "How images of a batch are mixed.",
        **put,
    )
    flags.DEFINE_float(
        "mix_share", 1.0, "Share of the batches that are mixed.", **put
    )
    flags.DEFINE_float(
        "context_share",
        0.0,
        "Share of training images that are shown without their objects.",
        **put,
    )


def define_options(values):
    put = {"flag_values": values}
    flags.DEFINE_string("data_dir", None, "Folder that holds the data.", **put)
    flags.DEFINE_string(
        "annotations", None, "Folder of Pascal VOC files with boxes.", **put
    )
    flags.DEFINE_string("vectors", None, "File of GloVe's word vectors.", **put)
    flags.DEFINE_bool(
        "download", False, "Download missing data into --data_dir.", **put
    )
    flags.DEFINE_integer("seed", 0, "Seed of all random numbers.", **put)
    flags.DEFINE_enum(
        "strategy",
        "none",
        ["none", "mirrored"],
        "Devices to train on. mirrored: all GPUs of the machine, which share "
        "each batch.",
        **put,
    )
    flags.DEFINE_integer(
        "logical_devices",
        None,
        "Number of devices into which the CPU is split, to try mirrored "
        "without GPUs.",
        lower_bound=1,
        **put,
    )
    flags.DEFINE_enum(
        "precision",
        "float32",
        ["float32", "mixed_bfloat16", "mixed_float16"],
        "Precision of the network; losses and metrics are float32.",
        **put,
    )
    flags.DEFINE_integer(
        "steps_per_epoch",
        None,
        "Number of steps of an epoch, to try a recipe out.",
        **put,
    )
    flags.DEFINE_bool("jit", False, "Compile the steps by XLA.", **put)
    flags.DEFINE_bool(
        "resume", False, "Continue the run in --workdir after a kill.", **put
    )
    flags.DEFINE_bool(
        "tensorboard", False, "Write event files for TensorBoard.", **put
    )
    flags.DEFINE_bool(
        "export", True, "Write the network as a SavedModel.", **put
    )
    flags.DEFINE_string("workdir", "work/runs", "Folder for results.", **put)
    flags.DEFINE_integer("verbose", 2, "Verbosity of `fit`.", **put)
