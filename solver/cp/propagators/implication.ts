import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

/** A condition on one variable. `equals` and `differs` need a domain with holes on an interval's inside. */
export interface Literal {
  variable: Variable;
  is: 'at most' | 'at least' | 'equal to' | 'other than';
  value: number;
}

const opposite = {
  'at most': 'at least',
  'at least': 'at most',
  'equal to': 'other than',
  'other than': 'equal to',
} as const;

/** All of `conditions` ⇒ `conclusion`; one false condition short of deciding, that one is made false. */
export class Implication extends Propagator {
  readonly #clause: readonly Literal[];

  constructor(conditions: readonly Literal[], conclusion: Literal) {
    super();
    // As a clause: one of the negated conditions, or the conclusion.
    this.#clause = [...conditions.map(negated), conclusion];
  }

  watch(): void {
    for (const { variable } of this.#clause) variable.wakeOnChange(this);
  }

  propagate(): void {
    let open: Literal | undefined;
    for (const literal of this.#clause) {
      const truth = truthOf(literal);
      if (truth === true) return;
      if (truth === undefined) {
        if (open !== undefined) return;
        open = literal;
      }
    }
    if (open === undefined) fail();
    enforce(open);
  }
}

function negated({ variable, is, value }: Literal): Literal {
  const shifted = is === 'at most' ? value + 1 : is === 'at least' ? value - 1 : value;
  return { variable, is: opposite[is], value: shifted };
}

function truthOf({ variable, is, value }: Literal): boolean | undefined {
  switch (is) {
    case 'at most':
      return variable.max <= value ? true : variable.min > value ? false : undefined;
    case 'at least':
      return variable.min >= value ? true : variable.max < value ? false : undefined;
    case 'equal to':
      return !variable.has(value) ? false : variable.fixed ? true : undefined;
    case 'other than':
      return !variable.has(value) ? true : variable.fixed ? false : undefined;
  }
}

function enforce({ variable, is, value }: Literal): void {
  if (is === 'at most') variable.removeAbove(value);
  else if (is === 'at least') variable.removeBelow(value);
  else if (is === 'equal to') variable.fix(value);
  else variable.remove(value);
}
