/** HiGHS as npm has it (WebAssembly): the same formulation as CPLEX LP text. */
import { createRequire } from 'node:module';
import type { Highs } from 'highs';
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import type { PeerAnswer } from './python-peers.ts';

// Its types describe the CommonJS build, whose export is the loader itself.
const loadHighs = createRequire(import.meta.url)('highs') as () => Promise<Highs>;

export async function solveWithNpmHighs(problem: AssignmentProblem, limit_s: number): Promise<PeerAnswer> {
  const highs = await loadHighs();
  const text = lpText(problem);
  const start = performance.now();
  const solution = highs.solve(text, {
    mip_rel_gap: 0,
    mip_abs_gap: 0.999,
    time_limit: limit_s,
    output_flag: false,
  });
  const solve_s = (performance.now() - start) / 1000;
  const chosen = problem.options.map((options, model) =>
    options.flatMap((_, index) => {
      const column = solution.Columns[name(model, index)];
      return column && 'Primal' in column && column.Primal > 0.5 ? [index] : [];
    }),
  );
  const optimal = solution.Status === 'Optimal';
  return {
    status: optimal ? 'optimal' : solution.Status,
    objective: optimal ? Math.round(solution.ObjectiveValue) : null,
    chosen: optimal ? chosen : null,
    solve_s,
    best_s: null,
  };
}

const name = (model: number, index: number): string => `x${model}_${index}`;

function lpText({ counts, shares, options }: AssignmentProblem): string {
  const all = options.flatMap((row, model) =>
    row.map((option, index) => ({ ...option, model, x: name(model, index) })),
  );
  const terms = (of: typeof all, value: (option: (typeof all)[number]) => number): string =>
    of.map((option) => `+ ${value(option)} ${option.x}`).join('\n');
  const rows: string[] = [];
  for (const [model] of options.entries()) {
    const own = all.filter((option) => option.model === model);
    rows.push(`${terms(own, ({ share }) => share)} = ${typeof shares === 'number' ? shares : shares[model]}`);
    for (const type of new Set(own.map((option) => option.type)))
      rows.push(
        `${terms(
          own.filter((option) => option.type === type),
          () => 1,
        )} <= 1`,
      );
  }
  for (const [type, count] of counts.entries()) {
    const taken = all.filter((option) => option.type === type);
    if (taken.length > 0) rows.push(`${terms(taken, ({ devices }) => devices)} <= ${count}`);
  }
  return [
    'Minimize',
    terms(all, ({ cost }) => cost),
    'Subject To',
    ...rows,
    'Binary',
    ...all.map(({ x }) => x),
    'End',
  ].join('\n');
}
