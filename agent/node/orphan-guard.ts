import { type ChildProcess, spawn } from 'node:child_process';

/**
 * A few lines of shell that outlive the agent by seconds. It reads `add GROUP` and `drop GROUP` from a pipe; when
 * the pipe ends, because the agent did (SIGKILL and out of memory included), it ends the process groups that are
 * left and removes the runtime folder. Signals that Slurm sends to all of a step pass it by.
 */
const script = `
trap '' TERM INT HUP USR1 USR2
groups=
while read -r verb group; do
  case $verb in
    add) groups="$groups $group" ;;
    drop)
      kept=
      for one in $groups; do [ "$one" = "$group" ] || kept="$kept $one"; done
      groups=$kept ;;
  esac
done
for one in $groups; do kill -s TERM -- "-$one" 2>/dev/null; done
[ -z "$groups" ] || sleep 1
for one in $groups; do kill -s KILL -- "-$one" 2>/dev/null; done
rm -rf -- "$1"
`;

/** Sees to it that no child outlives the agent, however the agent ends. */
export class OrphanGuard {
  readonly #process: ChildProcess;

  /** @param folder removed when the agent has ended */
  constructor(folder: string) {
    this.#process = spawn('/bin/sh', ['-c', script, 'hpcserve-guard', folder], {
      stdio: ['pipe', 'ignore', 'ignore'],
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/bin:/bin' },
    });
    // Where the guard was killed, writing fails; Slurm still ends the step's processes.
    this.#process.stdin?.on('error', () => undefined);
    this.#process.unref();
  }

  get pid(): number | undefined {
    return this.#process.pid;
  }

  add(group: number): void {
    this.#process.stdin?.write(`add ${group}\n`);
  }

  drop(group: number): void {
    this.#process.stdin?.write(`drop ${group}\n`);
  }

  /** The agent ends in order: the guard removes the folder and ends too. */
  close(): void {
    this.#process.stdin?.end();
  }
}
