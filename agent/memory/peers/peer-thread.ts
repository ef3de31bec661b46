/** Entry of the thread that fetches tensors from peers: one load after another, until it is told to end. */

import { type MessagePort, workerData } from 'node:worker_threads';
import { giveWay } from '../../../host/niceness.ts';
import { loadGgml } from '../../../native/ggml.ts';
import { load_niceness } from '../load/niceness.ts';
import { UnitLoader } from '../load/unit-loader.ts';
import { loadFromPeers, type PeerNews, type PeerWork } from './peer-loader.ts';

giveWay(load_niceness);
const { port, folder } = workerData as { port: MessagePort; folder: string };
const loader = new UnitLoader(loadGgml(folder));
port.on('message', (message: { work: PeerWork; news: MessagePort } | 'end') => {
  if (message === 'end') {
    loader.free();
    port.close();
    return;
  }
  const { work, news } = message;
  const tell = (told: PeerNews): void => news.postMessage(told);
  void loadFromPeers(work, loader, tell).finally(() => news.close());
});
