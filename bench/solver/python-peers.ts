/** CP-SAT (ortools) and native HiGHS (highspy), from pip, each in a Python process that lives for the bench. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../../host/package-root.ts';
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import { MissingNeed } from '../need.ts';

export interface PeerAnswer {
  status: string;
  objective: number | null;
  chosen: number[][] | null;
  /** Seconds inside the solver's own call; building its model is left out. */
  solve_s: number;
  /** Seconds to its last better solution; null where the solver does not say. */
  best_s: number | null;
}

export type PythonSolver = 'cp-sat' | 'highs';

/** Module to import and package to install. */
const modules: Record<PythonSolver, string> = { 'cp-sat': 'ortools', highs: 'highspy' };

/**
 * A process a solver: ortools carries a HiGHS library of its own, which in one process takes the place of
 * the one highspy needs.
 */
export class PythonPeer {
  readonly #solver: PythonSolver;
  readonly #process: ChildProcess;
  readonly #answers: AsyncIterator<string>;

  private constructor(solver: PythonSolver, python: string) {
    this.#solver = solver;
    this.#process = spawn(python, [join(packageRoot, 'bench', 'solver', 'peers.py')], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#answers = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]();
  }

  /** Installed into build/solver-peers by pip where it is not there yet. @throws MissingNeed where that fails */
  static start(solver: PythonSolver, log: (line: string) => void): PythonPeer {
    const environment = join(packageRoot, 'build', 'solver-peers');
    const python = join(environment, 'bin', 'python');
    const module = modules[solver];
    const quiet = { stdio: ['ignore', 2, 2] as ['ignore', number, number] };
    try {
      if (!existsSync(python)) execFileSync('python3', ['-m', 'venv', environment], quiet);
      if (spawnSync(python, ['-c', `import ${module}`]).status !== 0) {
        log(`installing ${module} into build/solver-peers (pip) …`);
        execFileSync(python, ['-m', 'pip', 'install', '--quiet', '--timeout', '30', module], quiet);
      }
    } catch (error) {
      throw new MissingNeed(
        `${module}, which stands beside us, is not there and cannot be installed: ${(error as Error).message}`,
        `python3 -m venv build/solver-peers && build/solver-peers/bin/pip install ortools highspy, with Python 3's venv and a package index`,
      );
    }
    return new PythonPeer(solver, python);
  }

  async solve(problem: AssignmentProblem, limit_s: number): Promise<PeerAnswer> {
    this.#process.stdin!.write(`${JSON.stringify({ solver: this.#solver, ...problem, limit_s })}\n`);
    const { value, done } = await this.#answers.next();
    if (done) throw new Error(`the Python process of ${this.#solver} ended`);
    return JSON.parse(value) as PeerAnswer;
  }

  end(): void {
    this.#process.stdin!.end();
  }
}
