import { rmSync, statSync } from 'node:fs';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { monotonic_ms } from '../../host/clock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type FabricPlace, usableFabrics } from './fabric-frames.ts';
import { decodeFrame, type FrameBytes, isChecked } from './frame.ts';
import { FrameAssembler } from './frame-assembler.ts';
import { FrameReceiver } from './frame-receiver.ts';
import { FrameSender } from './frame-sender.ts';
import { ProviderChoice } from './provider-choice.ts';
import { greetingMetaSchema, ringFrame } from './ring-frame.ts';
import type { FromRing } from './ring-messages.ts';

/** Between two tries to reach the stage behind. Lower: up sooner; higher: fewer tries while it loads. */
const connect_pause_ms_min = 200;
/**
 * The same where tries are taken and come to nothing: agents ask one another by TLS for a stage on another node. Twice
 * as long with each, up to this. Lower: up sooner after a loss; higher: less is asked meanwhile.
 */
const connect_pause_ms_max = 2000;
/** A stage that lives says so this often, also while it computes. */
const alive_interval_ms = 1000;
/**
 * A stage that says nothing for so long is lost: stopped, or its host hangs. So long a pipeline may stand still. Lower:
 * answers go on elsewhere sooner; higher: tolerates hosts that stall.
 */
const silence_ms_max = 10_000;

/**
 * One place in the ring of a pipeline: a connection from the stage before, one to the stage behind. It is up while both
 * are there. A ring that breaks anywhere breaks everywhere: who loses one neighbour lets go of the other, so that every
 * stage, the coordinator among them, knows within the time of a message.
 *
 *     stage before ──frames──► listen │ this stage │ next ──frames──► stage behind
 *                  ◄─greeting─                            ◄─greeting─
 *
 * Long frames go by memory that two stages of one node have in common (`shared-frames.ts`), or into memory that the
 * stage behind lends on another node (`fabric-frames.ts`).
 *
 * The stage behind is there once it has greeted. Where it is on another node, an agent takes the connection before it
 * knows whether the stage can be reached: a ring that came up by that would break again with each try, and pull the
 * stages that are there along.
 */
export class Ring {
  readonly #listen: string;
  readonly #next: string;
  readonly #tell: (message: FromRing) => void;
  readonly #fabrics: FabricPlace | undefined;
  /** By which frames came damaged, whoever the stage before it was. */
  readonly #damaging: ProviderChoice;
  #server: Server | undefined;
  /** Of the socket that it listens on; undefined where it does not (yet). */
  #inode: number | undefined;
  #before: Socket | undefined;
  #behind: Socket | undefined;
  /** How frames come and go on them. */
  #receiver: FrameReceiver | undefined;
  #sender: FrameSender | undefined;
  /** To the stage behind, which has not greeted yet. */
  #reaching: Socket | undefined;
  #retry: NodeJS.Timeout | undefined;
  #pause_ms = connect_pause_ms_min;
  #heard_ms = 0;
  #isUp = false;
  #closed = false;
  /** Frames that came before the stage behind was there. */
  #early: FromRing[] = [];
  /** It has been told that a neighbour is of another version, and nothing is different since. */
  #toldForeign = false;
  readonly #alive: NodeJS.Timeout;

  /** @param fabrics absent: frames go to another node through both agents */
  constructor(
    listen: string,
    next: string,
    tell: (message: FromRing) => void,
    fabrics?: FabricPlace | undefined,
  ) {
    this.#listen = listen;
    this.#next = next;
    this.#tell = tell;
    this.#fabrics = fabrics;
    this.#damaging = new ProviderChoice(usableFabrics(fabrics));
    this.#alive = setInterval(() => this.#beat(), alive_interval_ms);
    this.#open();
    this.#connect();
  }

  send(frame: FrameBytes): void {
    // Where it broke meanwhile, who sends is told that, and not what became of its frame.
    if (this.#isUp) this.#sender?.send(frame);
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#alive);
    clearTimeout(this.#retry);
    this.#drop();
    this.#reaching?.destroy();
    this.#server?.close();
  }

  #open(): void {
    this.#server?.close();
    this.#inode = undefined;
    // Of a worker that was killed.
    rmSync(this.#listen, { force: true });
    this.#server = createServer((socket) => this.#accept(socket));
    this.#server.on('error', (error) => this.#break(`its socket cannot be opened: ${error.message}`));
    this.#server.listen(this.#listen, () => {
      this.#inode = inodeOf(this.#listen);
    });
  }

  #isListening(): boolean {
    return this.#inode !== undefined && this.#inode === inodeOf(this.#listen);
  }

  #accept(socket: Socket): void {
    // The stage before begins anew: what was is over.
    this.#lose('the stage before it came anew');
    this.#before = socket;
    this.#heard_ms = performance.now();
    const assembler = new FrameAssembler();
    socket.on('error', () => undefined); // 'close' follows
    socket.on('data', (chunk) => {
      if (this.#before !== socket) return;
      this.#heard_ms = performance.now();
      this.#read(assembler, chunk);
    });
    socket.on('close', () => {
      if (this.#before !== socket) return;
      this.#leaveBefore();
      this.#break('the stage before it is gone');
    });
    this.#receiver = new FrameReceiver(socket, this.#fabrics, this.#damaging, (news) =>
      this.#tell({ ...news, ring: `to ${this.#listen}` }),
    );
    this.#look();
  }

  #read(assembler: FrameAssembler, chunk: Uint8Array): void {
    try {
      assembler.take(chunk, (frame) => this.#came(frame));
    } catch (error) {
      this.#lose(this.#unusable(error));
    }
  }

  /** @returns why, for people */
  #unusable(thrown: unknown): string {
    const error = HpcserveError.from(thrown);
    if (error.code === 'E_STAGE_MISMATCH' && !this.#toldForeign) {
      this.#toldForeign = true;
      this.#tell({ type: 'foreign', error: error.toJSON() });
    }
    return error.because.join('; ');
  }

  /** @throws HpcserveError E_STAGE_FRAME */
  #came(bytes: FrameBytes): void {
    const frame = this.#receiver?.take(bytes);
    if (!frame) return;
    const came = {
      type: 'frame',
      frame,
      came_ms: monotonic_ms(),
      is_checked: isChecked(frame),
    } as const;
    if (this.#isUp) this.#tell(came);
    else this.#early.push(came);
  }

  #connect(): void {
    if (this.#closed) return;
    const socket = createConnection(this.#next);
    this.#reaching = socket;
    // Taken, and nobody greets: its host may be gone.
    socket.setTimeout(silence_ms_max, () => socket.destroy());
    let wasTaken = false;
    socket.on('error', () => undefined); // 'close' follows
    socket.on('connect', () => {
      wasTaken = true;
    });
    // Its greeting, and what it says of the memory of frames.
    const answers = new FrameAssembler();
    socket.on('data', (chunk) => {
      try {
        answers.take(chunk, (frame) => this.#answered(socket, frame));
      } catch (error) {
        this.#unusable(error);
        socket.destroy();
      }
    });
    socket.on('close', () => {
      const pause_ms = this.#pause_ms;
      if (this.#reaching === socket) {
        this.#reaching = undefined;
        if (wasTaken) this.#pause_ms = Math.min(connect_pause_ms_max, 2 * pause_ms);
      }
      if (this.#behind === socket) {
        this.#leaveBehind();
        this.#break('the stage behind it is gone');
      }
      clearTimeout(this.#retry);
      if (!this.#closed) this.#retry = setTimeout(() => this.#connect(), pause_ms);
    });
  }

  /** @throws HpcserveError E_STAGE_FRAME */
  #answered(socket: Socket, bytes: FrameBytes): void {
    const frame = decodeFrame(bytes);
    if (this.#reaching === socket) this.#greeted(socket, frame.meta);
    else if (this.#behind === socket) this.#sender?.answered(frame);
  }

  #greeted(socket: Socket, meta: Uint8Array): void {
    socket.setTimeout(0);
    this.#reaching = undefined;
    this.#pause_ms = connect_pause_ms_min;
    this.#behind = socket;
    // One of an earlier version greets with less.
    const { data } = greetingMetaSchema.safeParse(JSON.parse(Buffer.from(meta).toString()));
    this.#tell({ type: 'way', ring: this.#listen, way: 'connection' });
    this.#sender = new FrameSender(socket, data, this.#fabrics, (news) =>
      this.#tell({ ...news, ring: this.#listen }),
    );
    this.#look();
  }

  #look(): void {
    if (this.#isUp || !this.#before || !this.#behind) return;
    this.#isUp = true;
    this.#toldForeign = false;
    this.#tell({ type: 'up' });
    for (const came of this.#early.splice(0)) this.#tell(came);
  }

  #beat(): void {
    this.#behind?.write(ringFrame('alive', null));
    this.#receiver?.rest();
    // The place may have been another ring's, which was closed late and took the socket of its name along.
    if (!this.#before && !this.#isListening()) this.#open();
    const silent_ms = performance.now() - this.#heard_ms;
    if (this.#before && silent_ms > silence_ms_max)
      this.#lose(`the stage before it has said nothing for ${Math.round(silent_ms / 1000)} s`);
  }

  /** Of the stage before this one nothing more is wanted. */
  #lose(because: string): void {
    if (!this.#before) return;
    this.#leaveBefore();
    this.#break(because);
  }

  #break(because: string): void {
    this.#early = [];
    // While it comes up, one neighbour that goes is no reason to let go of the other.
    if (!this.#isUp) return;
    this.#drop();
    this.#tell({ type: 'down', because });
  }

  #drop(): void {
    this.#isUp = false;
    this.#leaveBefore();
    this.#leaveBehind();
  }

  #leaveBefore(): void {
    const before = this.#before;
    this.#before = undefined;
    this.#receiver?.close();
    this.#receiver = undefined;
    before?.destroy();
  }

  #leaveBehind(): void {
    const behind = this.#behind;
    this.#behind = undefined;
    this.#sender?.close();
    this.#sender = undefined;
    behind?.destroy();
  }
}

function inodeOf(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.ino;
}
