"""Names of the columns of groups that a windowed computation refuses."""

import polars as pl
import pytest

import headwater as hw
from headwater.errors import InvalidError
from headwater.process.windows.columns import STATE_COLUMNS
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing


@pytest.mark.parametrize("name", sorted(STATE_COLUMNS))
def test_a_group_cannot_have_the_name_of_a_column_of_the_state(name: str) -> None:
    windowing = Windowing(what={"n": hw.count()}, where=hw.Tumbling("1 minute"), by=(name,))
    with pytest.raises(InvalidError, match=f"`by` names the column '{name}', a name that windows use"):
        WindowedKernel.of(windowing, pl.Schema({name: pl.Int64(), "event_time": pl.Int64()}))
