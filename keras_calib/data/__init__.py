"""tf.data pipelines for images whose objects are marked by boxes or masks.

- Examples: `from_folder`, `from_tfds`, `from_tfrecords`, `describe`,
  `DatasetSummary`.
- Classes: `class_map`, `ClassMapping`, `map_classes`, `cap_classes`,
  `label_by_largest`.
- Valid examples: `valid_examples`, `Tally`.
- Pipelines: `training_pipeline`, `validation_pipeline`, `array_pipeline`,
  `EpochBatches`, `with_index`, `apply_layers`.
- Crops and mixing: `random_resized_crop`, `center_crop`, `color_jitter`,
  `mixup`, `cutmix`, `ricap`.
- Painted objects: `object_examples`, `context_examples`.
- Boxes: `objectness`, `objectness_from_mask`, `boxes_to_mask`, `mask_area`,
  `union_area`, `clip_boxes`, `crop_boxes`, `flip_boxes`, `resize_boxes`.

`folders`, `tfds` and `tfrecords` make examples, dicts that
`random_resized_crop` describes; `validity`, `classes`, `painting` and `crops`
change them; `pipelines` and `epochs` make the batches that `fit` takes. Not
here: predictions of a model on a data set (`predictions`).
Floor: beside `losses`, `metrics` and `calibrators`.
"""

from keras_calib.data.boxes import (
    boxes_to_mask,
    clip_boxes,
    crop_boxes,
    flip_boxes,
    mask_area,
    objectness,
    objectness_from_mask,
    resize_boxes,
    union_area,
)
from keras_calib.data.classes import (
    ClassMapping,
    cap_classes,
    class_map,
    label_by_largest,
    map_classes,
)
from keras_calib.data.crops import center_crop, random_resized_crop
from keras_calib.data.epochs import EpochBatches, array_pipeline, with_index
from keras_calib.data.folders import from_folder
from keras_calib.data.layers import apply_layers
from keras_calib.data.mixing import color_jitter, cutmix, mixup, ricap
from keras_calib.data.painting import context_examples, object_examples
from keras_calib.data.pipelines import training_pipeline, validation_pipeline
from keras_calib.data.summary import DatasetSummary, describe
from keras_calib.data.tfds import from_tfds
from keras_calib.data.tfrecords import from_tfrecords
from keras_calib.data.validity import Tally, valid_examples

__all__ = [
    "ClassMapping",
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
    "random_resized_crop",
    "resize_boxes",
    "ricap",
    "training_pipeline",
    "union_area",
    "valid_examples",
    "validation_pipeline",
    "with_index",
]
