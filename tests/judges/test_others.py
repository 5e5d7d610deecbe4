"""litellm, LangChain and llm (requirements/judges.txt) against a whole cluster, each as a program of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from judged import SPEAKS, Judged
from live import DEMO

missing = not find_spec("litellm") and not os.environ.get("CI")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(missing, reason="make test CI=1 installs requirements/judges.txt"),
]
HERE = Path(__file__).parent
LLM = Path(sys.executable).with_name("llm")
WEATHER = "def get_weather(city: str) -> str:\n    'Tell how the weather is.'\n    return 'sunny in ' + city"


def environ(**settings: str) -> dict[str, str]:
    """Return an environment in which nothing but the server is asked."""
    return os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUTF8": "1"} | settings


def asking(judge: str, live: Judged, *words: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, HERE / "clients" / f"ask_{judge}.py", *words, live.url, DEMO, SPEAKS]
    return subprocess.Popen(argv, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("judge", ["litellm", "langchain"])
def test_a_judge_gets_all_that_it_asks_for(live: Judged, judge: str) -> None:
    with asking(judge, live) as process:
        said, complaints = process.communicate(timeout=300)
    assert (process.returncode, said.split()[-1:]) == (0, ["done"]), said + complaints


def test_judges_hear_of_a_node_lost_in_mid_stream(live: Judged) -> None:
    with asking("litellm", live, "lose") as litellm, asking("langchain", live, "lose") as langchain:
        for process in (litellm, langchain):
            assert process.stdout
            assert process.stdout.readline() == "streaming\n", process.communicate()[1]
        epoch = live.lose_a_node()
        for process in (litellm, langchain):
            said, complaints = process.communicate(timeout=120)
            assert process.returncode == 0, complaints
            assert said.split()[-1].endswith("Error"), said + complaints
    live.found_again(epoch)


def test_the_llm_command(live: Judged, tmp_path: Path) -> None:
    models = [
        {"model_id": "demo", "model_name": DEMO, "api_base": f"{live.url}/v1"},
        {"model_id": "speaks", "model_name": SPEAKS, "api_base": f"{live.url}/v1", "supports_tools": True},
    ]
    lines = [f"{'-' if n == 0 else ' '} {k}: {v}" for one in models for n, (k, v) in enumerate(one.items())]
    (tmp_path / "extra-openai-models.yaml").write_text("\n".join(lines).replace(": True", ": true") + "\n")

    def llm(*words: str) -> str:
        settings = environ(LLM_USER_PATH=str(tmp_path), OPENAI_API_KEY="none")
        done = subprocess.run([LLM, *words], env=settings, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    question = ["What is the capital of France?", "-o", "max_tokens", "16", "-o", "temperature", "0"]
    assert "Paris" in llm("-m", "demo", *question)
    assert llm("-m", "demo", "--no-stream", *question) == llm("-m", "demo", *question)
    for how in ([], ["--no-stream"]):
        said = llm("-m", "speaks", *how, "--functions", WEATHER, "How is the weather in Paris?")
        assert "Sunny, 21 degrees." in said
