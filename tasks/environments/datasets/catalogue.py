"""The published data sets that `nbrl data` knows, by name."""

from nbrl.tasks.environments.datasets import code, published
from nbrl.tasks.environments.datasets.published import Published

CATALOGUE = {
    "nq-open": Published(
        "google-research-datasets/nq_open", "nq_open", ("train", "validation"), "qa", "CC BY-SA 3.0", published.nq_open
    ),
    "trivia-qa": Published(
        "mandarjoshi/trivia_qa", "rc.nocontext", ("train", "validation"), "qa", "Apache-2.0", published.trivia_qa
    ),
    "pop-qa": Published("akariasai/PopQA", "default", ("test",), "qa", "MIT", published.pop_qa),
    "simple-qa": Published("basicv8vc/SimpleQA", "default", ("test",), "qa", "MIT", published.simple_qa),
    "bamboogle": Published("chiayewken/bamboogle", "default", ("test",), "qa", "MIT", published.bamboogle),
    "hotpot-qa": Published(
        "hotpotqa/hotpot_qa",
        "distractor",
        ("train", "validation"),
        "qa",
        "CC BY-SA 4.0",
        published.hotpot_qa,
        published.titled_sentences,
    ),
    "2wiki": Published(
        "framolfese/2WikiMultihopQA",
        "default",
        ("train", "validation"),
        "qa",
        "Apache-2.0",
        published.two_wiki,
        published.titled_sentences,
    ),
    "musique": Published(
        "dgslibisey/MuSiQue", "default", ("train", "validation"), "qa", "CC BY 4.0", published.musique, published.paragraphs
    ),
    "gsm8k": Published("openai/gsm8k", "main", ("train", "test"), "number", "MIT", published.gsm8k),
    "math": Published("qwedsacf/competition_math", "default", ("train",), "math", "MIT", published.competition),
    "math-500": Published("HuggingFaceH4/MATH-500", "default", ("test",), "math", "MIT", published.math_500),
    "aime-2024": Published("Maxwell-Jia/AIME_2024", "default", ("train",), "number", "MIT", published.aime),
    "human-eval": Published("openai/openai_humaneval", "openai_humaneval", ("test",), "code", "MIT", code.human_eval),
    "mbpp": Published(
        "google-research-datasets/mbpp", "full", ("train", "test", "validation", "prompt"), "code", "CC BY 4.0", code.mbpp
    ),
    "mbpp-sanitized": Published(
        "google-research-datasets/mbpp", "sanitized", ("train", "test", "validation", "prompt"), "code", "CC BY 4.0", code.mbpp
    ),
    "gaia": Published("gaia-benchmark/GAIA", "2023_all", ("validation",), "gaia", "terms of its card", published.gaia),
}
