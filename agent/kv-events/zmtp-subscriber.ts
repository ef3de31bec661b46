/**
 * The subscriber's side of ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) with the mechanism NULL, over a unix socket: what
 * it takes to read a ZeroMQ PUB socket in a folder of our own. A binding of libzmq is 2 MB of native code on each
 * system, for one protocol that needs three frames to begin.
 */
import { connect, type Socket } from 'node:net';

const greeting_bytes = 64;
const more_flag = 1;
const long_flag = 2;
const command_flag = 4;
/** The signature, version 3.0, the mechanism NULL, no server. */
const greeting = Buffer.alloc(greeting_bytes);
greeting[0] = 0xff;
greeting[9] = 0x7f;
greeting[10] = 3;
greeting.write('NULL', 12, 'latin1');
/** The command READY with the property Socket-Type, and a message that subscribes to every topic. */
const ready = commandFrame('READY', [['Socket-Type', 'SUB']]);
const subscribeToAll = Buffer.from([0, 1, 1]);
const version_min = 3;

export interface SubscriberBounds {
  /** Of one frame. Lower: less memory at risk; higher: larger batches of events are read. */
  frame_bytes_max: number;
  /** Frames of one message. */
  frames_max: number;
}

/** Reads messages out of bytes as a PUB socket sends them; what is against the protocol is an error. */
export class ZmtpReader {
  readonly #bounds: SubscriberBounds;
  readonly #reply: (bytes: Buffer) => void;
  #subscribed = false;
  #rest: Buffer = Buffer.alloc(0);
  #greeted = false;
  #frames: Buffer[] = [];

  /** @param reply sends what the other side waits for */
  constructor(bounds: SubscriberBounds, reply: (bytes: Buffer) => void) {
    this.#bounds = bounds;
    this.#reply = reply;
  }

  /** @throws Error where it is no ZMTP, or more than the bounds allow */
  *push(chunk: Buffer): Generator<Buffer[]> {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    if (!this.#greeted && !this.#takeGreeting()) return;
    for (let frame = this.#takeFrame(); frame; frame = this.#takeFrame()) {
      if ((frame.flags & command_flag) !== 0) {
        if (!this.#subscribed) this.#reply(subscribeToAll);
        this.#subscribed = true;
        continue;
      }
      this.#frames.push(frame.body);
      if (this.#frames.length > this.#bounds.frames_max) throw new Error('a message has too many frames');
      if ((frame.flags & more_flag) !== 0) continue;
      const message = this.#frames;
      this.#frames = [];
      yield message;
    }
  }

  #takeGreeting(): boolean {
    if (this.#rest.length < greeting_bytes) return false;
    const mechanism = this.#rest.toString('latin1', 12, 32).replace(/\0+$/, '');
    if (this.#rest[0] !== 0xff || this.#rest[9] !== 0x7f || this.#rest[10]! < version_min)
      throw new Error('it does not greet as ZMTP 3 does');
    if (mechanism !== 'NULL') throw new Error(`it asks for the mechanism ${mechanism.slice(0, 20)}`);
    this.#rest = this.#rest.subarray(greeting_bytes);
    this.#greeted = true;
    // Sent along with the greeting, it made libzmq close the connection.
    this.#reply(ready);
    return true;
  }

  #takeFrame(): { flags: number; body: Buffer } | undefined {
    const rest = this.#rest;
    const flags = rest[0];
    if (flags === undefined) return undefined;
    if (flags > (more_flag | long_flag | command_flag)) throw new Error('a frame has unknown flags');
    const head = (flags & long_flag) === 0 ? 2 : 9;
    if (rest.length < head) return undefined;
    const length = head === 2 ? rest[1]! : Number(rest.readBigUInt64BE(1));
    if (length > this.#bounds.frame_bytes_max) throw new Error(`a frame has ${length} bytes`);
    if (rest.length < head + length) return undefined;
    this.#rest = rest.subarray(head + length);
    return { flags, body: rest.subarray(head, head + length) };
  }
}

/**
 * Follows the PUB socket at a path until it closes, or says what is no ZMTP.
 * @returns what ends it; `onEnd` runs once in any case
 */
export function subscribe(
  path: string,
  bounds: SubscriberBounds,
  onMessage: (frames: Buffer[]) => void,
  onEnd: (reason: string) => void,
): () => void {
  const socket: Socket = connect(path);
  const reader = new ZmtpReader(bounds, (bytes) => socket.write(bytes));
  let reason = 'it was closed';
  socket.on('connect', () => socket.write(greeting));
  socket.on('data', (chunk) => {
    try {
      for (const message of reader.push(chunk)) onMessage(message);
    } catch (error) {
      reason = (error as Error).message;
      socket.destroy();
    }
  });
  socket.on('error', (error) => {
    reason = error.message;
  });
  socket.on('close', () => onEnd(reason));
  return () => socket.destroy();
}

function commandFrame(name: string, properties: readonly (readonly [string, string])[]): Buffer {
  const parts = [Buffer.from([name.length]), Buffer.from(name, 'latin1')];
  for (const [key, value] of properties) {
    const size = Buffer.alloc(4);
    size.writeUInt32BE(value.length);
    parts.push(Buffer.from([key.length]), Buffer.from(key, 'latin1'), size, Buffer.from(value, 'latin1'));
  }
  const body = Buffer.concat(parts);
  return Buffer.concat([Buffer.from([command_flag, body.length]), body]);
}
