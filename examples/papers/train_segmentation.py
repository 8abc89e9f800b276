r"""Trains a network that gives each pixel a class by a recipe.

    python examples/papers/train_segmentation.py --data_dir=DIR \
    --flagfile=examples/papers/recipes/setups/camvid_deeplabv3plus_small.flags \
    --flagfile=examples/papers/recipes/losses/acls.flags

Measures are of all labelled pixels of the test images; predictions of
--pixels_per_image of each are kept, and what is repaired is measured on them.
What is written is what train_classifier.py writes, and confidence.png: images,
classes, and where the network is sure and wrong.
"""

from absl import logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size
from data.scenes import load_scenes
from results.runs import load_network, run_folder
from runs.scene_pictures import draw_confidence
from runs.scenes import scene_task
from runs.training import run

recipe_flags.define()


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    recipe_flags.check_task(setup, "segmentation")
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    scenes = load_scenes(setup, options)
    setup = setup._replace(ignore_class=scenes.void)
    row = run(
        scene_task(scenes, setup, method, options), setup, method, options
    )
    for name, value in row.items():
        print(f"{name:26}{value}")
    folder = run_folder(options.workdir, setup, method, options.seed)
    if options.export:
        model = load_network(folder)
        shown = scenes.test.take(4)
        picture = folder / "confidence.png"
        draw_confidence(shown, scenes.names, scenes.void, model, picture)
    print(folder)


if __name__ == "__main__":
    start(main)
