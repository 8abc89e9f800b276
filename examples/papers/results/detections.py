"""Average precision and recall of detections, as COCO measures them."""

import contextlib
import io

import numpy as np

# The twelve numbers of COCOeval, in its order: precision, then recall.
_MEASURES = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar", "ar_small", "ar_medium", "ar_large"),
)


def average_precision(truth, found, num_classes):
    """Measures of detections by name: fractions, of all classes that occur.

    Args:
        truth: For each image a dict of `boxes` `(n, 4)`, the pixels ymin,
            xmin, ymax, xmax, and `labels` `(n,)`. `crowd` `(n,)` says whether
            a box has many objects, which are neither found nor missed. `area`
            `(n,)` is in pixels, 0 for that of the box.
        found: For each image a dict of `boxes`, `labels` and `scores` `(n,)`.
        num_classes: Number of classes.

    Returns:
        `ap` and `ar` at the overlaps 0.5 to 0.95, of at most 100 boxes of an
        image. `ap50` and `ap75` are at one overlap, `ar1` and `ar10` of that
        many boxes. `_small` is for objects up to 32 pixels squared, `_medium`
        up to 96, `_large` above. Measures without objects are left out.

    Reference:
        Lin et al., Microsoft COCO, ECCV 2014, https://arxiv.org/abs/1405.0312;
        https://cocodataset.org/#detection-eval
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise ImportError(
            "Average precision needs pycocotools: "
            "pip install keras-calib[detection]"
        ) from error
    annotations, rows = [], []
    for image, part in enumerate(truth):
        boxes = _corner_and_extent(part["boxes"])
        for place, box in enumerate(boxes):
            area = part["area"][place] or box[2] * box[3]
            annotations.append(
                {
                    # 0 would be no match to COCOeval.
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(part["labels"][place]),
                    "bbox": box.tolist(),
                    "area": float(area),
                    "iscrowd": int(part["crowd"][place]),
                }
            )
    for image, part in enumerate(found):
        boxes = _corner_and_extent(part["boxes"])
        first = np.full((len(boxes), 1), image)
        last = np.stack([part["scores"], part["labels"]], axis=1)
        rows.append(np.concatenate([first, boxes, last], axis=1))
    rows = np.concatenate(rows)
    # It reads no empty list of detections: one that is never right.
    if not len(rows):
        rows = np.array([[0, -2, -2, 1, 1, 0.0, 0]])
    images = [{"id": image} for image in range(len(truth))]
    categories = [{"id": label} for label in range(num_classes)]
    # It prints as it goes.
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": images,
            "annotations": annotations,
            "categories": categories,
        }
        known.createIndex()
        result = COCOeval(known, known.loadRes(rows), "bbox")
        result.evaluate()
        result.accumulate()
        result.summarize()
    return {
        name: float(value)
        for name, value in zip(_MEASURES, result.stats, strict=True)
        if value >= 0
    }


def _corner_and_extent(boxes):
    """COCO's left, top, width and height."""
    boxes = np.asarray(boxes, "float64").reshape(-1, 4)
    top, left, bottom, right = boxes.T
    return np.stack([left, top, right - left, bottom - top], axis=1)
