import { type ChildProcess, spawn } from 'node:child_process';
import type { FolderGuard } from './runtime-folder.ts';

/**
 * A few lines of shell that outlive the agent by seconds. It reads `add GROUP` and `drop GROUP` from a pipe; when
 * the pipe ends, because the agent did (SIGKILL and out of memory included), it ends the process groups that are
 * left, and the containers that are no children of them (`detached-container.ts` writes the files), and removes the
 * runtime folder. Signals that Slurm sends to all of a step pass it by.
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
# Each leads a session, too, in which others may have made groups of their own.
for one in $groups; do
  kill -s KILL -- "-$one" 2>/dev/null
  pkill -KILL -s "$one" 2>/dev/null
done
for file in "$1"/*.container; do
  [ -f "$file" ] || continue
  timeout 60 xargs -0 sh -c 'name=$1; shift; "$@" kill "$name"; "$@" rm --force "$name"' sh <"$file" >/dev/null 2>&1
done
# What was killed ends a moment later, perhaps in the middle of making a file.
for again in 1 1 1 2 5 10; do
  rm -rf -- "$1" 2>/dev/null && break
  sleep "$again"
done
`;

/** Variables by which container runtimes find what they run: no secret, and none that makes it a process of the job. */
const container_variables =
  /^(PATH|HOME|USER|LOGNAME|TMPDIR|XDG_(RUNTIME_DIR|CONFIG_HOME|DATA_HOME)|DBUS_SESSION_BUS_ADDRESS|(CONTAINERS|STORAGE|PODMAN)_\w+|DOCKER_(HOST|CONFIG|CONTEXT|TLS_VERIFY|CERT_PATH)|CONTAINERD_(ADDRESS|NAMESPACE))$/;

function ofContainers(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => container_variables.test(name)));
}

/** Sees to it that no child outlives the agent, however the agent ends. */
export class OrphanGuard implements FolderGuard {
  readonly #process: ChildProcess;

  /**
   * @param folder removed when the agent has ended; it may be made later
   * @param environment of the agent: what container runtimes need of it is handed on
   */
  constructor(folder: string, environment: NodeJS.ProcessEnv = {}) {
    this.#process = spawn('/bin/sh', ['-c', script, 'hpcserve-guard', folder], {
      stdio: ['pipe', 'ignore', 'ignore'],
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/bin:/bin', ...ofContainers(environment) },
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

  /** There is nothing to guard: it ends, and removes nothing. */
  abandon(): void {
    this.#process.kill('SIGKILL');
  }
}
