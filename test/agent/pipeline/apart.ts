/** Processes that see no other process's memory, as on a node of their own: they have process ids of their own. */
import { type ForkOptions, spawnSync } from 'node:child_process';

/** `unshare` with these words starts a program so, and ends it with itself. */
export const apart_words = ['--pid', '--fork', '--mount-proc', '--kill-child'] as const;

/** For Node's `fork`. */
export const apart: ForkOptions = { execPath: 'unshare', execArgv: [...apart_words, process.execPath] };

/** Linux wants root for it. */
export const canBeApart = spawnSync('unshare', [...apart_words, 'true']).status === 0;
