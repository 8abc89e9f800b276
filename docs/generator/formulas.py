"""Formulas as MathML, which browsers draw without a script."""

from latex2mathml.converter import convert


def formula(*latex):
    """Lines of LaTeX as one block of HTML."""
    lines = "\n".join(convert(line, display="block") for line in latex)
    if "\\" in lines:
        raise ValueError(f"a command is not known in {latex}")
    return f'<div class="formula">\n{lines}\n</div>'
