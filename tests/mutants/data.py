"""Faults of the pipelines for images with objects."""

from mutants.mutant import Mutant

MUTANTS = {
    "boxes_beyond_their_edge": Mutant(
        "data/boxes.py",
        "(low[..., None] <= start) & (start < high[..., None])",
        "(low[..., None] <= start) & (start <= high[..., None])",
        "data_pipelines/test_boxes.py::test_union_is_that_of_a_painted_mask",
    ),
    "flip_of_swapped_edges": Mutant(
        "data/boxes.py",
        "xmin, xmax = size[1] - xmax, size[1] - xmin",
        "xmin, xmax = size[1] - xmin, size[1] - xmax",
        "data_pipelines/test_boxes.py::test_flips_and_resizes_change_no_share",
    ),
    "boxes_of_every_class": Mutant(
        "data/boxes.py",
        "tf.where(counted[..., None], boxes",
        "tf.where(tf.ones_like(boxes, 'bool'), boxes",
        "data_pipelines/test_boxes.py::test_only_boxes_of_the_classes_count",
    ),
    "ratio_squared": Mutant(
        "data/crops.py",
        "narrow, wide = 0.5 * np.log(ratio)",
        "narrow, wide = np.log(ratio)",
        "data_pipelines/test_crops.py::"
        "test_areas_of_crops_are_drawn_evenly_until_they_fit",
    ),
    "boxes_not_mirrored": Mutant(
        "data/crops.py",
        'tf.where(crop["flipped"], flip_boxes(boxes), boxes)',
        'tf.where(crop["flipped"], boxes, flip_boxes(boxes))',
        "data_pipelines/test_crops.py::test_boxes_and_mask_agree_in_every_crop",
    ),
    "kept_object_painted": Mutant(
        "data/painting.py",
        "window, size, shape) & ~kept",
        "window, size, shape) | ~kept",
        "data_pipelines/test_painting.py::test_each_object_is_left_alone_once",
    ),
    "context_not_told": Mutant(
        "data/pipelines.py",
        "tf.where(context, marked, shares)",
        "tf.where(context, shares, shares)",
        "data_pipelines/test_pipelines.py::"
        "test_context_examples_have_exactly_uniform_targets",
    ),
    "unboxed_by_the_whole_image": Mutant(
        "data/crops.py",
        'tf.where(example["boxed"], share, 1.0)',
        'tf.where(example["boxed"], share, 0.0)',
        "data_pipelines/test_tfds.py::"
        "test_rows_kept_without_boxes_have_objectness_1_for_every_class",
    ),
    "one_order_for_all_epochs": Mutant(
        "data/epochs.py",
        "buffer_size, seed=epoch, reshuffle",
        "buffer_size, seed=0, reshuffle",
        "data_pipelines/test_order.py::"
        "test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch",
    ),
    "order_of_the_seed_of_the_program": Mutant(
        "data/epochs.py",
        "tf.random.set_seed(hashed(seed) % 2**31 + 1)",
        "pass",
        "data_pipelines/test_order.py::"
        "test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch",
    ),
    "index_of_two_workers": Mutant(
        "data/epochs.py",
        "index = place * step + first",
        "index = place + first",
        "data_pipelines/test_order.py::"
        "test_workers_see_different_examples_with_different_numbers",
    ),
    "weights_not_shuffled": Mutant(
        "data/epochs.py",
        "(x, y, self._weight[index])",
        "(x, y, self._weight[: len(index)])",
        "data_pipelines/test_epoch_batches.py::"
        "test_arrays_come_in_the_order_of_epoch_batches_for_each_seed_and_epoch",
    ),
    "cutmix_targets_swapped": Mutant(
        "data/mixing.py",
        "lam = 1.0 - tf.cast(replaced, labels.dtype)",
        "lam = tf.cast(replaced, labels.dtype)",
        "data_pipelines/test_mixing.py::"
        "test_targets_weigh_images_as_the_pixels_do",
    ),
    "boxes_without_area": Mutant(
        "data/validity.py",
        "good = (low < high) & (low < 1)",
        "good = (low <= high) & (low < 1)",
        "data_pipelines/test_tfrecords.py::"
        "test_what_is_no_box_is_named_or_skipped_and_counted",
    ),
    "ends_moved_with_the_first_pixel": Mutant(
        "data/folders.py",
        "(corners - [first_pixel, first_pixel, 0, 0])",
        "(corners - first_pixel)",
        "data_pipelines/test_folders.py::test_pixels_can_be_counted_from_1",
    ),
    "label_from_0": Mutant(
        "data/tfrecords.py",
        "raw[part] - first_label",
        "raw[part]",
        "data_pipelines/test_tfrecords.py::test_keys_of_records_can_be_others",
    ),
    "cap_too_low": Mutant(
        "data/classes.py",
        "counts[label] <= cap",
        "counts[label] < cap",
        "data_pipelines/test_classes.py::"
        "test_classes_are_capped_at_their_first_examples",
    ),
    "names_of_the_pass_before": Mutant(
        "data/validity.py",
        "            names.clear()\n",
        "            pass\n",
        "data_pipelines/test_tfrecords.py::"
        "test_broken_images_are_named_or_skipped_and_counted",
    ),
    "crops_of_the_first_epoch_again": Mutant(
        "data/pipelines.py",
        "tf.stack([root + epoch, place])",
        "tf.stack([root, place])",
        "data_pipelines/test_order.py::"
        "test_epochs_differ_and_resumed_training_sees_what_it_would_have_seen",
    ),
    "file_of_another_image": Mutant(
        "data/tfds.py",
        '**at(e["row"])',
        '**at((e["row"] + 1) % 3)',
        "data_pipelines/test_tfds.py::test_imagenet_gets_its_boxes_from_files",
    ),
    "crop_as_high_as_wide": Mutant(
        "data/crops.py",
        "tf.stack([side / root, side * root], axis=1)",
        "tf.stack([side * root, side / root], axis=1)",
        "data_pipelines/test_crops.py::"
        "test_crops_are_wide_where_the_ratio_says_so",
    ),
}
