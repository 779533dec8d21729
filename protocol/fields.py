"""Kinds of fields that commands share: what characters, lengths and ranges are taken."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

MAX_STOP_STRINGS: Final = 16  # vLLM itself has no bound; OpenAI takes 4
MAX_COMMAND_ID_CHARS: Final = 256
MAX_CALL_ID_CHARS: Final = 256
MAX_TOOL_NAME_CHARS: Final = 128
# OpenAI's, and the dot that other vendors' tools have.
TOOL_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_TOOL_NAME_CHARS}}}")
MAX_TOKENS: Final = 2**31  # more than any window, and still a C int for engines

# Descriptions follow the words "a string" in error texts (explain.py), since a regular expression is none.
Id = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z", description="of 1 to 128 characters from A-Z a-z 0-9 _ . : -")
]
StreamId = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,256}\Z", description="of 1 to 256 characters from A-Z a-z 0-9 _ . -")
]
CommandId = Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND_ID_CHARS)]
ModelId = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(min_length=1, max_length=16_384)]
# OpenAI's own bounds for metadata.
Metadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]  # vLLM: -1 and 0 take every token
MinP = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]
MaxOutputTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
MinTokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]

SearchQuery = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"\S", description="with more in it than white space")
]

MAX_TEXTS: Final = 256  # for an embedding, reranking or classifying command
Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
Dimensions = Annotated[int, Meta(ge=1, le=65_536)]
TopN = Annotated[int, Meta(ge=1, le=MAX_TEXTS)]

SequenceNumber = Annotated[int, Meta(ge=-1, le=2**53 - 1)]  # what JavaScript and Lua can count
