"""A testnet on this machine, of two providers of one thread each: nothing is far."""
import json
import subprocess

PROFILE = """
[[provider]]
device = "cpu"
price = 0.01
count = 2
"""


class Testnet:
    """Two providers of one thread each."""

    def __init__(self, souk, work):
        self.work, self.net = work, [souk, "--dir", str(work / "net")]
        profile = work / "profile.toml"
        profile.write_text(PROFILE)
        up = ["testnet", "up", "--detach", "--validators", "1", "--no-http"]
        self.run(*up, "--profile", str(profile))
        self.run("testnet", "down")
        for provider in (work / "net").glob("provider-*/provider.json"):
            told = json.loads(provider.read_text())
            told["device"] = {"cpu": {"threads": 1}}
            provider.write_text(json.dumps(told))
        self.run(*up)

    def run(self, *words):
        subprocess.run([*self.net, *words], check=True, stdout=subprocess.DEVNULL)
