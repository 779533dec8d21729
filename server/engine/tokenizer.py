"""A model's tokenizer and chat template from its folder, without transformers: for gateways that run no model.

It reads `tokenizer.json`, and the template as transformers finds it: `chat_template.jinja`, else `chat_template` in
`tokenizer_config.json`. Templates are programs of others: they run in Jinja's sandbox, as in transformers.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, Final

from server.engine.base import EngineStartError

_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateTokenizer:
    """What `PromptRenderer` asks of a tokenizer."""

    def __init__(self, backend: Any, template: str, special_tokens: dict[str, str]) -> None:
        self.backend_tokenizer = backend
        self.chat_template = template
        self._special_tokens = special_tokens
        self._compiled = _environment().from_string(template)

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Return the conversation as one text."""
        assert not tokenize
        return str(
            self._compiled.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **self._special_tokens
            )
        )


def load_tokenizer(folder: str) -> TemplateTokenizer:
    """Read a model's folder. Raises EngineStartError that says what is missing."""
    try:
        from jinja2 import TemplateError  # noqa: PLC0415 - optional
        from tokenizers import Tokenizer  # noqa: PLC0415 - optional
    except ImportError:
        raise EngineStartError("a tokenizer needs two more packages: pip install 'tokenwire[tokenizer]'") from None
    path = Path(folder).expanduser()
    if not (path / "tokenizer.json").is_file():
        raise EngineStartError(f"tokenizer folder {folder!r} holds no tokenizer.json")
    try:
        backend = Tokenizer.from_file(str(path / "tokenizer.json"))
        settings = json.loads(_text(path / "tokenizer_config.json") or "{}")
        template = _text(path / "chat_template.jinja") or _named_template(settings.get("chat_template"))
        return TemplateTokenizer(backend, template, _special_tokens(settings))
    except TemplateError as error:
        raise EngineStartError(f"the chat template in {folder!r} is broken: {error}") from None
    except Exception as error:  # noqa: BLE001 `tokenizers` raises a bare Exception for a damaged file
        raise EngineStartError(f"the tokenizer in {folder!r} cannot be read: {error}") from None


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def _named_template(template: Any) -> str:
    """Return the template; some models have several, by name."""
    if isinstance(template, list):
        return next((str(entry["template"]) for entry in template if entry.get("name") == "default"), "")
    return str(template or "")


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL_TOKENS:
        token = settings.get(name)
        if token := token.get("content") if isinstance(token, dict) else token:
            tokens[name] = str(token)
    return tokens


def _environment() -> Any:
    """Return Jinja as transformers sets it up: models' templates count on it."""
    from jinja2.exceptions import TemplateError  # noqa: PLC0415 - optional
    from jinja2.ext import loopcontrols  # noqa: PLC0415 - as above
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, *, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: dt.datetime.now(tz=dt.UTC).astimezone().strftime(form)
    return environment
