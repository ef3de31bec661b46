/** Entry of a thread that hashes one model file in the background, and keeps the result. */
import { setPriority } from 'node:os';
import { workerData } from 'node:worker_threads';
import { ContentHashCache, hashContents } from './content-hashes.ts';
import type { FileVersion } from './file-version.ts';
import type { FileRange } from './load/pieces.ts';

/** The lowest priority there is: nothing waits for it. */
const hash_niceness = 19;

// To Linux, a process id of 0 is the calling thread.
setPriority(0, hash_niceness);
const { file, ranges, folder } = workerData as { file: FileVersion; ranges: FileRange[]; folder: string };
new ContentHashCache(folder).write(file, hashContents(file, ranges));
