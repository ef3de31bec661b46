/** Thread of the Checkpointer: a passive checkpoint for every message, each answered when it is done. */
import { parentPort, workerData } from 'node:worker_threads';
import Database from 'better-sqlite3';

const { path } = workerData as { path: string };
const db = new Database(path, { fileMustExist: true });
parentPort!.on('message', () => {
  db.pragma('wal_checkpoint(PASSIVE)');
  parentPort!.postMessage('done');
});
