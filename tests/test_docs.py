import importlib.util
from pathlib import Path

SETTINGS = Path("docs/settings.py")


def test_the_settings_page_is_what_the_models_say() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", SETTINGS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Path("docs/settings.md").read_text(encoding="utf-8") == module.page(), "run: python docs/settings.py"
