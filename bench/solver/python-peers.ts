/** CP-SAT (ortools) and native HiGHS (highspy), from pip, each in a Python process that lives for the bench. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../../host/package-root.ts';
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';

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

  /** Undefined, with a line that says so, where pip does not have it. */
  static start(solver: PythonSolver, log: (line: string) => void): PythonPeer | undefined {
    const environment = join(packageRoot, 'build', 'solver-peers');
    const python = join(environment, 'bin', 'python');
    const module = modules[solver];
    const quiet = { stdio: ['ignore', 2, 2] as ['ignore', number, number] };
    try {
      if (!existsSync(python)) execFileSync('python3', ['-m', 'venv', environment], quiet);
      if (spawnSync(python, ['-c', `import ${module}`]).status !== 0) {
        log(`installing ${module} into build/solver-peers (pip) …`);
        const options = ['--quiet', '--timeout', '5', '--retries', '0'];
        execFileSync(python, ['-m', 'pip', 'install', ...options, module], quiet);
      }
    } catch (error) {
      log(`${module} is left out: ${(error as Error).message}`);
      return undefined;
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
