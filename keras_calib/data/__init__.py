"""tf.data pipelines for images whose objects are marked by boxes or masks.

Builders make examples, dicts described at the head of `crops`; functions on
data sets of examples choose, paint and count; `training_pipeline` and
`validation_pipeline` make the batches that `fit` takes.
"""

from keras_calib.data.arrays import EpochBatches
from keras_calib.data.arrays import array_pipeline
from keras_calib.data.boxes import boxes_to_mask
from keras_calib.data.boxes import clip_boxes
from keras_calib.data.boxes import crop_boxes
from keras_calib.data.boxes import flip_boxes
from keras_calib.data.boxes import mask_area
from keras_calib.data.boxes import resize_boxes
from keras_calib.data.boxes import union_area
from keras_calib.data.classes import ClassMap
from keras_calib.data.classes import cap_classes
from keras_calib.data.classes import class_map
from keras_calib.data.classes import label_by_largest
from keras_calib.data.classes import map_classes
from keras_calib.data.crops import center_crop
from keras_calib.data.crops import random_resized_crop
from keras_calib.data.folders import from_folder
from keras_calib.data.jitter import color_jitter
from keras_calib.data.layers import apply_layers
from keras_calib.data.mixing import cutmix
from keras_calib.data.mixing import mixup
from keras_calib.data.mixing import ricap
from keras_calib.data.object_share import objectness
from keras_calib.data.object_share import objectness_from_mask
from keras_calib.data.order import shuffled_epochs
from keras_calib.data.order import with_index
from keras_calib.data.painting import context_examples
from keras_calib.data.painting import object_examples
from keras_calib.data.painting import pixel_mean
from keras_calib.data.pipelines import training_pipeline
from keras_calib.data.pipelines import validation_pipeline
from keras_calib.data.summary import DatasetSummary
from keras_calib.data.summary import describe
from keras_calib.data.tally import Tally
from keras_calib.data.tfds_source import from_tfds
from keras_calib.data.tfrecords import from_tfrecords
from keras_calib.data.validity import valid_examples

__all__ = [
    "ClassMap",
    "DatasetSummary",
    "EpochBatches",
    "Tally",
    "apply_layers",
    "array_pipeline",
    "boxes_to_mask",
    "cap_classes",
    "center_crop",
    "class_map",
    "clip_boxes",
    "color_jitter",
    "context_examples",
    "crop_boxes",
    "cutmix",
    "describe",
    "flip_boxes",
    "from_folder",
    "from_tfds",
    "from_tfrecords",
    "label_by_largest",
    "map_classes",
    "mask_area",
    "mixup",
    "object_examples",
    "objectness",
    "objectness_from_mask",
    "pixel_mean",
    "random_resized_crop",
    "resize_boxes",
    "ricap",
    "shuffled_epochs",
    "training_pipeline",
    "union_area",
    "valid_examples",
    "validation_pipeline",
    "with_index",
]
