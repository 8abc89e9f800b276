"""Reading and checking of labels, predictions and weights.

Lives here: the readers of user input, and the wording of its errors. `batch` is
the door. `labels`, `weights` and `rows` of predictions have the rules of their
values, which `values` enforces; `checks` are for arguments and shapes;
`outcomes` are what became of answers. Not here: what is computed of it
(`formulas`).
Floor: above `backend` and `numerics`.
"""
