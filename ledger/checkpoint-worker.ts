/** Thread of the Checkpointer: one passive checkpoint, then it ends. */
import { workerData } from 'node:worker_threads';
import Database from 'better-sqlite3';

const { path } = workerData as { path: string };
const db = new Database(path, { fileMustExist: true });
try {
  db.pragma('wal_checkpoint(PASSIVE)');
} finally {
  db.close();
}
