"""MiniLM over two devices."""

from __future__ import annotations

import statistics

from figure import Figure, alternating, cpus, timed, with_yardstick


def minilm(rounds: int, quick: bool) -> list[Figure]:
    import torch

    import callboard
    import minilm

    torch.set_num_threads(1)
    model = minilm.load_model()
    # Eight tokens, the markers of beginning and end included.
    tokenizer = minilm.AutoTokenizer.from_pretrained(str(minilm.get_model_path()))
    coded = tokenizer(["The cast reads its calls."], padding="max_length", truncation=True, max_length=8,
                      return_tensors="pt")
    example = tokenizer(["One sentence.", "And another, longer one."], padding=True, return_tensors="pt")
    one = (coded["input_ids"], coded["attention_mask"])
    batch_coded = tokenizer(minilm.SENTENCES[:8], padding="max_length", truncation=True, max_length=64,
                            return_tensors="pt")
    batch = (batch_coded["input_ids"], batch_coded["attention_mask"])
    submits = 32
    with callboard.launch(cpus(2)) as cluster, torch.inference_mode():
        program = minilm.compile_embedder(cluster, model, (example["input_ids"], example["attention_mask"]))
        for arguments in (one, batch):
            torch.testing.assert_close(program(*arguments), model(*arguments), rtol=0, atol=0)
        latency = alternating(rounds, 20 if quick else 60, lambda: program(*one), lambda: model(*one))

        def pipelined() -> None:
            for future in [program.submit(*batch) for _ in range(submits)]:
                future.get()

        def eager() -> None:
            for _ in range(submits):
                model(*batch)

        throughput = []
        pipelined()
        for _ in range(rounds):
            times = [timed(pipelined) for _ in range(1 if quick else 2)]
            torch.set_num_threads(2)
            eager()
            reference = [timed(eager) for _ in range(1 if quick else 2)]
            torch.set_num_threads(1)
            throughput.append((8 * submits / statistics.median(times) * 1e6,
                               8 * submits / statistics.median(reference) * 1e6))
    return [with_yardstick("minilm_latency", latency, "us", 0.8,
                           "one sentence of 8 tokens over two devices, against eager in one process, one thread each"),
            with_yardstick("minilm_throughput", throughput, "1/s", 1.0,
                           "sentences a second, 8 x 64 tokens, 32 submits over two 1-thread devices, against eager "
                           "with 2 threads", at_least=True)]
