"""The former name of `headwater.testing.sink_contract`; import from `headwater.testing` instead."""

from headwater.testing.sink_contract import VALUES, Destination, SinkContract, json_form
from headwater.testing.sink_contract import Destination as Place

__all__ = ["VALUES", "Destination", "Place", "SinkContract", "json_form"]
