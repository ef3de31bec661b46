/** The process that bytes come to, as `target.js ADDRESS`; told over IPC what comes. */
import { FabricEnd } from '../../native/fabric/fabric.ts';
import { closeSocket, frame_header_bytes, listenOn, Mover, ticket_bytes } from '../../native/fabric/mover.ts';
import { SharedMemory } from '../../native/memory-map.ts';
import { memory_bytes, piecesOf, type Round } from './rounds.ts';

export type TargetCall =
  | { call: 'listen' }
  | { call: 'fabric'; provider: string }
  | { call: 'receive'; round: Round; checksum: boolean };

export const bench_ticket: Uint8Array = new Uint8Array(ticket_bytes).fill(9);
export const bench_header: Uint8Array = new Uint8Array(frame_header_bytes).fill(5);
export const bench_patience = { silence_ms: 20_000, limit_ms: 60_000 };

/** Memory of the size that all contestants have, all of it taken. */
export function benchMemory() {
  const shared = SharedMemory.create('hpcserve-bench', memory_bytes);
  const address = shared.map();
  return { address, bytes: memory_bytes, descriptor: shared.descriptor };
}

if (process.send) {
  const host = process.argv[2]!;
  const memory = benchMemory();
  const mover = new Mover(memory);
  let socket = -1;
  const answer = async (call: TargetCall): Promise<unknown> => {
    if (call.call === 'listen') {
      const { socket: listener, port } = listenOn(host, 0);
      void mover.accept(listener, bench_ticket, bench_ticket, 5000).then((accepted) => {
        socket = accepted;
        closeSocket(listener);
      });
      return port;
    }
    if (call.call === 'fabric') {
      const end = await FabricEnd.open(call.provider, call.provider === 'shm' ? '' : host, memory);
      end.expect(call.provider === 'shm');
      const { name, numbers } = end.address;
      return { name, numbers: [...numbers] };
    }
    const { round, checksum } = call;
    const came = Array.from({ length: round.transfers }, (_, at) =>
      mover.receive(socket, bench_header, piecesOf(round, at), bench_patience, { checksum }),
    );
    void Promise.all(came);
    // What says that all of it is there comes after it, from the same thread.
    void mover.send(socket, bench_header, [], bench_patience, { sendfile: false, checksum: false });
    return undefined;
  };
  process.on('message', ({ number, call }: { number: number; call: TargetCall }) => {
    void answer(call).then((result) => process.send!({ number, result }));
  });
  process.on('disconnect', () => process.exit(0));
  process.send({ number: 0 });
}
