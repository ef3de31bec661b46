import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/**
 * Answers that are behind others on their connections. Where a client goes away, Node tells only the answer whose turn
 * it is; the others would wait for theirs for good, and with them all that is held for their requests.
 */
export class QueuedAnswers {
  readonly #queued = new WeakMap<Socket, Set<ServerResponse>>();

  /** Ends it with its connection, where that ends first. */
  add(socket: Socket, response: ServerResponse): void {
    const queued = this.#queued.get(socket) ?? this.#watched(socket);
    queued.add(response);
    response.once('close', () => queued.delete(response));
  }

  #watched(socket: Socket): Set<ServerResponse> {
    const queued = new Set<ServerResponse>();
    this.#queued.set(socket, queued);
    socket.once('close', () => {
      for (const response of queued) giveUp(response);
    });
    return queued;
  }
}

function giveUp(response: ServerResponse): void {
  // Its turn came, so that Node says it.
  if (response.socket !== null) return;
  response.destroy();
  response.emit('close');
}
