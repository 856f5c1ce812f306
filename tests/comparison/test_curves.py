"""The curves of a comparison can be told apart, and their labels read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mltune.comparison.figures import COLOURS, label_ends, line_style, scale_to_optimum, spread


def test_no_colour_is_used_twice_for_twelve_strategies_and_no_style_for_sixty():
    assert len({line_style(at).colour for at in range(len(COLOURS))}) == len(COLOURS) == 12
    assert len({str(line_style(at)) for at in range(60)}) == 60


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).map(sorted))
def test_labels_have_room_and_stay_near_their_curves(places):
    found = spread(np.array(places), 0.05)
    assert np.all(np.diff(found) >= 0.05 - 1e-9)
    assert np.abs(found - places).max() <= 0.05 * len(places)


def test_every_curve_has_a_label_beside_its_end():
    axes = Figure().add_subplot()
    scale_to_optimum(axes, 0.0)
    label_ends(axes, {"a": (1.0, "red"), "b": (0.999, "blue"), "c": (0.2, "green")})
    labels = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert set(labels) == {"a 100.0 %", "b 99.9 %", "c 20.0 %"}
    assert labels["a 100.0 %"] - labels["b 99.9 %"] > 0.02
