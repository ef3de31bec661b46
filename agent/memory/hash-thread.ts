/** Entry of a thread that hashes one model file in the background, and keeps the result. */

import { workerData } from 'node:worker_threads';
import { giveWay } from '../../host/niceness.ts';
import { ContentHashCache, hashContents } from './content-hashes.ts';
import type { FileVersion } from './file-version.ts';
import type { FileRange } from './load/pieces.ts';

/** The lowest priority there is: nothing waits for it. */
const hash_niceness = 19;

giveWay(hash_niceness);
const { file, ranges, folder } = workerData as { file: FileVersion; ranges: FileRange[]; folder: string };
new ContentHashCache(folder).write(file, hashContents(file, ranges));
