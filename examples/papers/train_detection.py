r"""Fine-tune a detector on the backbone of a classifier.

    python examples/papers/train_detection.py --data_dir=DIR \
        --begin_with=work/runs/imagenet_mask_resnet50/cutmix/seed0 \
        --flagfile=examples/papers/recipes/setups/coco_retinanet_resnet50.flags

The script shows what the labels of a classifier are worth to another task:
tables 4 and 7 of Krothapalli & Abbott, Adaptive Label Smoothing, 2020. The
backbone is the network in model.keras of a run of train_classifier.py, a
residual network of RGB images. That run chose the labels: hard, smoothed, of
CutMix or by objectness.

The following takes a quarter of an hour for each loss, on one core. RECIPES is
the folder recipes beside this script:

    for loss in cross_entropy adaptive_label_smoothing; do
      python examples/papers/train_classifier.py --data_dir=DIR \
          --flagfile=$RECIPES/setups/tiny_imagenet_boxes_small.flags \
          --flagfile=$RECIPES/losses/$loss.flags
      python examples/papers/train_detection.py --data_dir=DIR \
          --begin_with=work/runs/tiny_imagenet_boxes_small/$loss/seed0 \
          --flagfile=$RECIPES/setups/canvases_retinanet_small.flags
    done

The paper has a Faster R-CNN without a feature pyramid, of which no maintained
Keras implementation exists. This is KerasHub's RetinaNet. It has one stage in
place of two, a pyramid of features from stride 8 on, and a focal loss of all
anchors in place of sampled proposals. Compare labels by it, not its numbers
with those of the paper. After a kill, add --resume.

--workdir gets a folder SETUP/METHOD_from_BACKBONE/seedN. It holds:

- results.csv with COCO's average precision and recall
- serving, a SavedModel from pixels in [0, 255] to boxes (ymin, xmin, ymax,
  xmax), scores, class ids and their number
- backup.npz
"""

from absl import flags, logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size
from data.detection import load_boxes
from results.runs import run_folder
from runs.detection import backbone_names, check_setup, detector, run

recipe_flags.define()
_BEGIN = flags.DEFINE_string(
    "begin_with", None, "Folder of a run, with model.keras.", required=True
)


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    recipe_flags.check_task(setup, "detection")
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    check_setup(setup, method)
    name, backbone = backbone_names(_BEGIN.value)
    method = method._replace(method=f"{name}_from_{backbone}")
    data = load_boxes(setup, options)
    model = detector(_BEGIN.value, setup, len(data.names), options)
    row = run(model, data, setup, method, options, begin_with=_BEGIN.value)
    for name, value in row.items():
        print(f"{name:20}{value}")
    print(run_folder(options.workdir, setup, method, options.seed))


if __name__ == "__main__":
    start(main)
