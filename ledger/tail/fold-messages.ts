import type { ErrorJson } from '../../spec/errors/error.ts';

/** What the thread that folds the tail is given. */
export interface FoldThreadData {
  ledger: string;
  /** Where the thread says how far it came: see `progress`. */
  progress: SharedArrayBuffer;
}

/** `more`: something was appended; `now`: somebody waits for it; `end`: fold the rest and end. */
export type ToFoldThread = 'more' | 'now' | 'end';

/** After each fold: why it could not, where it could not. */
export interface FromFoldThread {
  failure?: ErrorJson | undefined;
}

/** Places in `progress`, of 32 bits each. `turns` counts steps, done or failed: who waits is woken by it. */
export const progress = { turns: 0, file: 1, bytes: 2, failed: 3, length: 4 } as const;
