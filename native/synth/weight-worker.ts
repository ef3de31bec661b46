/** A thread of `synthesize`: takes chunks off a shared counter and writes them at their places in the file. */
import { parentPort, workerData } from 'node:worker_threads';
import { type ChunkWork, runChunks } from './chunks.ts';

if (parentPort === null) throw new Error('weight-worker runs as a worker thread only');
const port = parentPort;
runChunks(workerData as ChunkWork, (bytes) => port.postMessage(bytes));
