"""The table of all scenarios."""

from failures import FAILURES
from inputs import INPUTS
from replies import DECODING, DOUBTS, GOODBYES

SCENARIOS = (*DECODING, *DOUBTS, *GOODBYES, *FAILURES, *INPUTS)
