"""Every loss, with what its laws need to know."""

import functools

from loss_case import LossCase

import keras_calib as kc


def _released(gamma):
    """Rows of the released code of FLSD."""
    return [[0.2, 5.0], [0.5, 3.0], [1.0, float(gamma)]]


def _fidelity(cls, **kwargs):
    return functools.partial(cls, from_logits=True, **kwargs)


_NONDEFAULT = {"margin": 3.0, "lambda1": 0.6, "lambda2": 0.15}

LOSSES = [
    LossCase(
        "LabelSmoothing",
        kc.LabelSmoothing,
        kc.losses.label_smoothing,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        goldens={
            "ls_k": {
                "alpha0.1": {"alpha": 0.1},
                "alpha0.05": {"alpha": 0.05},
            },
            "ls_negative": {"alpha-0.4": {"alpha": -0.4}},
        },
    ),
    LossCase(
        "LabelSmoothing-others",
        kc.LabelSmoothing,
        kc.losses.label_smoothing,
        {"alpha": 0.1, "spread": "others"},
        limit={"alpha": 0.0, "spread": "others"},
        goldens={
            "ls_km1": {
                "alpha0.1": {"alpha": 0.1, "spread": "others"},
                "alpha0.05": {"alpha": 0.05, "spread": "others"},
            },
        },
    ),
    LossCase(
        "MbLS",
        kc.MbLS,
        kc.losses.mbls,
        {"margin": 2.0, "strength": 0.3},
        limit={"strength": 0.0},
        goldens={
            "mbls": {
                "m10_a0.1": {},
                "m6_a0.1": {"margin": 6.0},
                "m3_a1": {"margin": 3.0, "strength": 1.0},
            },
        },
    ),
    LossCase(
        "MbLS-sum",
        kc.MbLS,
        kc.losses.mbls,
        {"margin": 2.0, "class_reduction": "sum"},
        limit={"strength": 0.0, "class_reduction": "sum"},
        goldens={"mbls_sum": {"m10_a0.1": {"class_reduction": "sum"}}},
    ),
    LossCase(
        "ACLS",
        kc.ACLS,
        kc.losses.acls,
        {"margin": 2.0},
        limit={"lambda1": 0.0, "lambda2": 0.0},
        goldens={
            "acls_eq13": {
                "default": {},
                "m6": {"margin": 6.0},
                "nondef": _NONDEFAULT,
            },
        },
    ),
    LossCase(
        "ACLS-zero",
        kc.ACLS,
        kc.losses.acls,
        {"margin": 2.0, "reference": "zero"},
        limit={"lambda1": 0.0, "lambda2": 0.0, "reference": "zero"},
        shift_invariant=False,
        goldens={
            "acls_code": {
                "default": {"reference": "zero"},
                "m6": {"margin": 6.0, "reference": "zero"},
                "nondef": {**_NONDEFAULT, "reference": "zero"},
            },
        },
    ),
    *(
        LossCase(
            f"ACLS-{name}-{reference}",
            kc.ACLS,
            kc.losses.acls,
            {"margin": 2.0, "reference": reference, **ablation},
            shift_invariant=reference == "min",
            goldens={
                f"acls_{name}_{reference}": {
                    "default": {"reference": reference, **ablation},
                    "m6": {"margin": 6.0, "reference": reference, **ablation},
                    "nondef": {
                        **_NONDEFAULT,
                        "reference": reference,
                        **ablation,
                    },
                }
            },
        )
        for name, ablation in (
            ("ar", {"condition": "none"}),
            ("cr", {"smoothing": "constant"}),
        )
        for reference in ("min", "zero")
    ),
    LossCase(
        "CRLMargin",
        kc.CRLMargin,
        kc.losses.crl_margin,
        {"margin": 3.0, "strength": 0.7},
        limit={"strength": 0.0},
    ),
    LossCase(
        "CRLMargin-each",
        kc.CRLMargin,
        kc.losses.crl_margin,
        {"margin": 3.0, "strength": 0.7, "condition": "each"},
        limit={"strength": 0.0, "condition": "each"},
        shift_invariant=False,
    ),
    LossCase(
        "FocalLoss",
        kc.FocalLoss,
        kc.losses.focal_loss,
        {"gamma": 3.0},
        limit={"gamma": 0.0},
        goldens={
            "focal_mean": {f"g{g}": {"gamma": float(g)} for g in range(4)},
            "focal_sum": {
                f"g{g}": {"gamma": float(g), "reduction": "sum"}
                for g in range(4)
            },
        },
    ),
    LossCase(
        "FocalLoss-half", kc.FocalLoss, kc.losses.focal_loss, {"gamma": 0.5}
    ),
    LossCase(
        "InverseFocalLoss",
        kc.InverseFocalLoss,
        kc.losses.inverse_focal_loss,
        {"gamma": 1.5},
        limit={"gamma": 0.0},
        soft_labels=False,
        goldens={
            "inverse_focal_mean": {
                f"g{g}": {"gamma": float(g)} for g in (1, 2, 3)
            },
            "inverse_focal_sum": {
                f"g{g}": {"gamma": float(g), "reduction": "sum"}
                for g in (1, 2, 3)
            },
        },
    ),
    LossCase(
        "FLSD",
        kc.FLSD,
        kc.losses.flsd,
        limit={"gammas": [[1.0, 0.0]]},
        soft_labels=False,
        goldens={
            "flsd_mean": {
                **{f"g{g}": {"gammas": _released(g)} for g in (0, 2)},
                "g3": {},
            },
            "flsd_sum": {
                f"g{g}": {"gammas": _released(g), "reduction": "sum"}
                for g in (0, 2, 3)
            },
        },
    ),
    LossCase(
        "LabelRelaxation",
        kc.LabelRelaxation,
        kc.losses.label_relaxation,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        soft_labels=False,
        goldens={
            "label_relaxation": {
                "alpha0.1": {},
                "alpha0.25": {"alpha": 0.25},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty",
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3},
        limit={"beta": 0.0},
        goldens={"ecp_pereyra": {"b0.1": {}, "b1": {"beta": 1.0}}},
    ),
    LossCase(
        "ConfidencePenalty-mean",
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3, "class_reduction": "mean"},
        goldens={
            "ecp_mbls": {
                "a0.1": {"class_reduction": "mean"},
                "a1": {"beta": 1.0, "class_reduction": "mean"},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty-threshold",
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3, "threshold": 1.0},
        goldens={"ecp_threshold": {"b0.1_t1.0": {"threshold": 1.0}}},
    ),
    LossCase(
        "UniformityPenalty",
        kc.UniformityPenalty,
        kc.losses.uniformity_penalty,
        {"strength": 0.3},
        limit={"strength": 0.0},
        goldens={"penalty_l1": {"a1": {}}},
    ),
    LossCase(
        "BrierLoss",
        kc.BrierLoss,
        kc.losses.brier_loss,
        linear=False,
        goldens={"brier": {"default": {}}},
    ),
    LossCase(
        "CPC",
        kc.CPC,
        kc.losses.cpc,
        {"lambda1": 0.3, "lambda2": 0.5},
        limit={"lambda1": 0.0, "lambda2": 0.0},
        soft_labels=False,
        goldens={
            "cpc_nodiag": {
                "cals_cfg": {},
                "ctor": {"lambda1": 1.0, "lambda2": 1.0},
                "nondef": {"lambda1": 0.3, "lambda2": 0.05},
            },
        },
    ),
    LossCase(
        "AdaptiveLabelSmoothing",
        kc.AdaptiveLabelSmoothing,
        kc.losses.adaptive_label_smoothing,
        limit={"beta": 0.0},
        objectness=True,
    ),
    LossCase(
        "AdaptiveLabelSmoothing-floor",
        kc.AdaptiveLabelSmoothing,
        kc.losses.adaptive_label_smoothing,
        {"beta": 0.75, "floor": "uniform"},
        limit={"beta": 0.0, "floor": "uniform"},
        objectness=True,
    ),
    *(
        LossCase(
            f"MMCE-{variant}",
            kc.MMCE,
            kc.losses.mmce,
            {"variant": variant, "strength": 2.0},
            limit={"variant": variant, "strength": 0.0},
            soft_labels=False,
            batch_coupled=True,
            goldens={
                method: {
                    f"l{strength}": {
                        "variant": variant,
                        "strength": float(strength),
                    }
                    for strength in (1, 2, 4)
                }
            },
        )
        for variant, method in (
            ("unweighted", "mmce"),
            ("unweighted_sqrt", "mmce_m_sqrt"),
            ("weighted", "mmce_w_paper"),
            ("weighted_released", "mmce_w_code"),
        )
    ),
    LossCase(
        "MDCA",
        kc.MDCA,
        kc.losses.mdca,
        {"strength": 3.0},
        limit={"strength": 0.0},
        linear=False,
        batch_coupled=True,
        goldens={"mdca_nll": {"b1": {}, "b10": {"strength": 10.0}}},
    ),
    LossCase(
        "MDCA-focal",
        kc.MDCA,
        kc.losses.mdca,
        {"strength": 3.0, "fidelity": _fidelity(kc.FocalLoss, gamma=1.0)},
        linear=False,
        batch_coupled=True,
        goldens={
            "mdca_fl": {
                f"g1_b{b}": {
                    "strength": float(b),
                    "fidelity": _fidelity(kc.FocalLoss, gamma=1.0),
                }
                for b in (1, 10)
            },
            "mdca_ls": {
                f"a0.1_b{b}": {
                    "strength": float(b),
                    "fidelity": _fidelity(
                        kc.LabelSmoothing, alpha=0.1, spread="others"
                    ),
                }
                for b in (1, 10)
            },
        },
    ),
    LossCase(
        "L1ACE",
        kc.L1ACE,
        kc.losses.l1_ace,
        {"strength": 0.3, "num_bins": 4, "by": "batch"},
        limit={"strength": 0.0, "by": "batch"},
        linear=False,
        batch_coupled=True,
    ),
    LossCase(
        "DCA",
        kc.DCA,
        kc.losses.dca,
        {"strength": 3.0},
        limit={"strength": 0.0},
        linear=False,
        batch_coupled=True,
        goldens={"dca_nll": {"b1": {}, "b10": {"strength": 10.0}}},
    ),
    LossCase(
        "DCA-huber",
        kc.DCA,
        kc.losses.dca,
        {"strength": 3.0, "huber_delta": 0.05},
        linear=False,
        batch_coupled=True,
        goldens={
            "patra_huber_ce": {"l1_d0.005": {"huber_delta": 0.005}},
            "patra_huber_focal": {
                "g1_l1_d0.005": {
                    "huber_delta": 0.005,
                    "fidelity": _fidelity(kc.FocalLoss, gamma=1.0),
                },
                "g3_l10_d0.1": {
                    "strength": 10.0,
                    "huber_delta": 0.1,
                    "fidelity": _fidelity(kc.FocalLoss, gamma=3.0),
                },
            },
        },
    ),
]

# Their values depend on the labels around a pixel: tests/losses/test_spatial.py
OTHER_LOSSES = [kc.NACL, kc.SVLS]
# What takes no class ids has tests of its own.
OTHER_LOSSES += [kc.labels.MultiLabelLoss]
