"""The rules that a job is held against after each of its processes.

1, each row of the input is once in the output. 2, what was committed is kept. 3, what is sent again
was in flight or not committed yet. 4, the output has only rows that the journal has. 12 and 13, the
manifest counts every row, is written last, and so is true whenever it is there.
"""

import json
import time
from hashlib import sha256
from pathlib import Path

__all__ = ["Watch"]

MOST_RUNS = 10


class Watch:
    """Runs a job's processes, one after the other, and checks after each.

    Args:
        job: its server's account begins with the next process.
    """

    def __init__(self, job):
        self.job = job
        self.kept = job.kept()

    def run(self, *more, plan=None, kill_after_s=None):
        """Let a process run, for so long if it is to be killed; return the ended command."""
        command = self.job.start(*more, plan=plan)
        if kill_after_s is None:
            command.wait()
        else:
            time.sleep(kill_after_s)
            command.kill()
        self.check(command)
        return command

    def publish(self, plan=None):
        """Let the output be written anew from the journal."""
        command = self.job.publish(plan)
        assert not self.job.server.run.came, "nothing is sent"
        self.check(command)
        return command

    def check(self, command):
        """Hold a process that has just ended against the rules."""
        job, run = self.job, self.job.server.run
        assert "Traceback" not in command.said, command.said
        before, self.kept = self.kept, job.check_kept()
        assert before.answers <= self.kept.answers and before.failed <= self.kept.failed, "rule 2"
        wanted = job.wanted()
        for prompt, count in run.came.items():
            committed = before.answers_of(prompt) + before.failed_of(prompt)
            assert committed < wanted[prompt], f"rule 3: {prompt} was committed, and sent {count} times more"
        self.check_manifest()

    def check_manifest(self):
        """Return the manifest, if there is one."""
        job = self.job
        if not job.manifest.exists():
            return None
        manifest = json.loads(job.manifest.read_text())
        [output] = manifest["outputs"]
        data = job.out.read_bytes()
        # The job may be a copy of the one that wrote the manifest.
        assert (Path(output["path"]).name, output["bytes"]) == (job.out.name, len(data)), "rule 13"
        assert output["sha256"] == sha256(data).hexdigest(), "rule 13"
        parts = [manifest[name] for name in ("reused", "answered", "failed", "filtered")]
        assert sum(parts) == manifest["read"], f"rule 12: {manifest}"
        return manifest

    def finish(self, *more, ordered=True):
        """Run the job until nothing is left to try, and check the output; return the last status."""
        for _ in range(MOST_RUNS):
            ended = self.run(*more)
            assert ended.status in (0, 1), ended.said
            if not self.job.server.run.came:
                break
        else:
            # Rows that failed for now are answered by then; no others are sent again.
            raise AssertionError(f"rule 7: the last of {MOST_RUNS} runs sent {self.job.server.run.came}")
        self.job.check_whole(ordered=ordered)
        assert self.check_manifest()["read"] == len(self.job.lines)
        return ended.status
