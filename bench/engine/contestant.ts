import { type ChildProcess, fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Answer, Measured, Task, WorkerSetup } from './protocol.ts';

/** One child process of the bench, as its parent sees it. */
export class Contestant {
  readonly name: string;
  weight_bytes = 0;
  readonly #child: ChildProcess;

  private constructor(name: string, child: ChildProcess) {
    this.name = name;
    this.#child = child;
  }

  /** Starts the child and resolves when its model is loaded and its threads sleep. */
  static async start(setup: WorkerSetup): Promise<Contestant> {
    const child = fork(fileURLToPath(new URL('./worker.js', import.meta.url)), [], {
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const contestant = new Contestant(setup.contender, child);
    const answer = await contestant.#ask(setup);
    if ('ready' in answer) contestant.weight_bytes = answer.weight_bytes;
    return contestant;
  }

  async run(task: Task): Promise<Measured> {
    const answer = await this.#ask(task);
    if (!('measured' in answer)) throw new Error(`${this.name} gave no measurement`);
    return answer.measured;
  }

  /** Proportional set size in bytes (Linux): shared pages count by their share. */
  pss_bytes(): number {
    const rollup = readFileSync(`/proc/${this.#child.pid}/smaps_rollup`, 'utf8');
    return Number(/^Pss:\s+(\d+) kB/m.exec(rollup)![1]) * 1024;
  }

  stop(): Promise<void> {
    return new Promise((resolve) => {
      this.#child.once('exit', () => resolve());
      this.#child.kill();
    });
  }

  #ask(message: WorkerSetup | Task): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const done = (settle: () => void): void => {
        this.#child.off('message', onMessage);
        this.#child.off('exit', onExit);
        settle();
      };
      const onMessage = (answer: Answer): void =>
        done(() =>
          'error' in answer ? reject(new Error(`${this.name}: ${answer.error}`)) : resolve(answer),
        );
      const onExit = (code: number | null, signal: string | null): void =>
        done(() => reject(new Error(`${this.name} ended with ${signal ?? code}`)));
      this.#child.on('message', onMessage);
      this.#child.on('exit', onExit);
      this.#child.send(message);
    });
  }
}
