"""The curves of a comparison can be told apart, and their labels read."""

from matplotlib.figure import Figure

from mltune.comparison.figures import COLOURS, label_ends, line_style, scale_to_optimum


def test_no_colour_is_used_twice_for_twelve_strategies_and_no_style_for_sixty():
    assert len({line_style(at)[0] for at in range(len(COLOURS))}) == len(COLOURS) == 12
    assert len({str(line_style(at)) for at in range(60)}) == 60


def test_every_curve_has_a_label_the_best_first():
    axes = Figure().add_subplot()
    scale_to_optimum(axes, 0.0)
    lines = [axes.plot([1, 2], [1, 2], color=colour)[0] for colour in ("green", "red", "blue")]
    label_ends(axes, dict(zip("cab", zip((0.2, 1.0, 0.999), lines, strict=True), strict=True)))
    labels = axes.get_legend().get_texts()
    assert [text.get_text() for text in labels] == ["a 100.0 %", "b 99.9 %", "c 20.0 %"]
    assert [text.get_color() for text in labels] == ["red", "blue", "green"]
