import type { Socket } from 'node:net';
import {
  becauseOf,
  FabricInbox,
  type FabricMeta,
  type FabricPlace,
  fabricMetaSchema,
  usableFabrics,
} from './fabric-frames.ts';
import { damaged, decodeFrame, type FrameBytes, kindOf, metaOf } from './frame.ts';
import { parcelMetaSchema } from './frame-room.ts';
import { type GreetingMeta, ringFrame } from './ring-frame.ts';
import { FrameInbox, sharedMetaSchema } from './shared-frames.ts';

/** The end of a connection to which frames come from the stage before, whichever way they take (`FrameSender`). */
export class FrameReceiver {
  readonly #socket: Socket;
  readonly #fabrics: FabricPlace | undefined;
  #shared: FrameInbox | undefined;
  #fabric: FabricInbox | undefined;
  /** Counts what was asked for: of two, the later one is meant. */
  #asked = 0;
  #closed = false;

  constructor(socket: Socket, fabrics: FabricPlace | undefined) {
    this.#socket = socket;
    this.#fabrics = fabrics;
    const greeting: GreetingMeta = { shares: true };
    const usable = usableFabrics(fabrics);
    if (usable.length > 0) greeting.fabrics = usable;
    socket.write(ringFrame('alive', greeting));
  }

  /**
   * @returns the frame that came; undefined: it was about the connection
   * @throws HpcserveError E_STAGE_FRAME
   */
  take(bytes: FrameBytes): FrameBytes | undefined {
    switch (kindOf(bytes)) {
      case 'alive':
        return undefined;
      case 'shared': {
        const told = metaOf(decodeFrame(bytes), sharedMetaSchema);
        this.#shared?.close();
        this.#shared = undefined;
        this.#shared = FrameInbox.open(told);
        this.#socket.write(ringFrame('shared', { mapped: this.#shared !== undefined }));
        return undefined;
      }
      case 'fabric':
        this.#said(metaOf(decodeFrame(bytes), fabricMetaSchema));
        return undefined;
      case 'parcel':
        return this.#unpack(bytes);
      default:
        return bytes;
    }
  }

  /** Called at times. */
  rest(): void {
    this.#fabric?.rest();
  }

  close(): void {
    this.#closed = true;
    this.#shared?.close();
    this.#shared = undefined;
    this.#leaveFabric();
  }

  #unpack(bytes: FrameBytes): FrameBytes {
    const parcel = metaOf(decodeFrame(bytes), parcelMetaSchema);
    const inbox = this.#shared ?? this.#fabric;
    if (!inbox) throw damaged('a parcel came where no memory is shared');
    const frame = inbox.take(parcel);
    this.#socket.write(ringFrame('taken', { end: parcel.end }));
    return frame;
  }

  #said(meta: FabricMeta): void {
    if (meta.step === 'ask') void this.#lend(meta.provider);
    else if (meta.step === 'probe') void this.#check(meta.provider, meta.probe);
    else if (meta.step === 'closed') this.#leaveFabric();
  }

  async #lend(provider: string): Promise<void> {
    this.#leaveFabric();
    const asked = this.#asked;
    try {
      if (!usableFabrics(this.#fabrics).includes(provider))
        throw new Error(`the provider ${provider} is not used here`);
      const inbox = await FabricInbox.open(provider, this.#fabrics!.host);
      if (this.#closed || asked !== this.#asked) {
        await inbox.close();
        return;
      }
      this.#fabric = inbox;
      this.#write({ step: 'lent', provider, address: inbox.address });
    } catch (error) {
      this.#write({ step: 'refused', provider, because: becauseOf(error) });
    }
  }

  async #check(provider: string, probe: string): Promise<void> {
    try {
      if (this.#fabric?.provider !== provider) throw new Error(`nothing is lent by ${provider}`);
      await this.#fabric.connected(probe);
      this.#write({ step: 'ready', provider });
    } catch (error) {
      this.#write({ step: 'refused', provider, because: becauseOf(error) });
    }
  }

  #leaveFabric(): void {
    this.#asked++;
    void this.#fabric?.close();
    this.#fabric = undefined;
  }

  #write(meta: FabricMeta): void {
    if (!this.#closed) this.#socket.write(ringFrame('fabric', meta));
  }
}
