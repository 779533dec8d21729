"""What runs inside Triton: a model with the vLLM backend's contract that says the prompt's last line, word by word.

Prompts are ChatML. `slow` in the text: a word each 50 ms. `fail`: an error in the middle. `hang`: nothing more.
`bytes`: one byte a piece. `forever`: far more than asked for. Sampling parameters are written down, and so is a request
that was cancelled.
"""

import json
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb  # type: ignore[import-not-found]


class TritonPythonModel:
    def initialize(self, args):
        self._tells = "return_finish_reason" in args["model_config"]
        self._note(f"loaded {args['model_name']}")

    def finalize(self):
        self._note("unloaded")

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self._answer, args=(request.get_response_sender(), *self._read(request))).start()

    def _read(self, request):
        def value(name, default):
            tensor = pb.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy().reshape(-1)[0]

        text = value("text_input", b"").decode()
        parameters = value("sampling_parameters", b"{}").decode()
        self._note(
            json.dumps({"text": text, "parameters": json.loads(parameters), "stream": bool(value("stream", False))})
        )
        return text, json.loads(parameters)

    def _answer(self, sender, prompt, parameters):
        said = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")
        begun = said[2].partition("assistant\n")[2]  # a continuation
        words = re.findall(r"\s*\S+", said[0])
        words = words[len(re.findall(r"\s*\S+", begun)) :]
        limit = parameters["max_tokens"]
        if "forever" in said[0]:
            words, limit = words * 1000, 1000 * len(words)
        for number, word in enumerate(words[:limit]):
            while "hang" in word and not sender.is_cancelled():
                time.sleep(0.05)
            if sender.is_cancelled():
                self._note("cancelled")
                break
            if "fail" in word:
                sender.send(pb.InferenceResponse(error=pb.TritonError("the model broke\ndown")))
                break
            last = number + 1 == min(limit, len(words))
            reason = ("length" if len(words) > limit else "stop") if last else "None"
            whole = word.encode()
            for piece in [bytes([byte]) for byte in whole] if "bytes" in said[0] else [whole]:
                sender.send(self._response(piece, reason))
            if "slow" in said[0]:
                time.sleep(0.05)
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, word, reason):
        tensors = [pb.Tensor("text_output", np.array([word], dtype=np.object_))]
        if self._tells:
            tensors.append(pb.Tensor("finish_reason", np.array([reason.encode()], dtype=np.object_)))
            tensors.append(pb.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)))
        return pb.InferenceResponse(output_tensors=tensors)

    def _note(self, text):
        with Path(os.environ["TRITON_TEST_EVENTS"]).open("a") as events:
            events.write(text + "\n")
