import { CopyMask } from './copy-mask.ts';
import {
  type KvTransfer,
  type LayoutChange,
  type OperatorRange,
  type PipelineLayout,
  planLayoutChange,
} from './layout.ts';
import type {
  RefactoringAction,
  RefactoringEvent,
  RefactoringOutcome,
  RefactoringPhase,
} from './messages.ts';

export interface RefactoringRequest {
  from: PipelineLayout;
  to: PipelineLayout;
  /** The epoch of `from`. */
  epoch: number;
  /** Whether operators of the range have KV. */
  hasKv: (range: OperatorRange) => boolean;
  /** Rows of each block that holds something. */
  filled: Iterable<readonly [block: number, rows: number]>;
  /** Sequences that are being computed, now. */
  running: () => number;
  /** Rows of a transfer's round come only while the coordinator goes on computing; absent: no round is such a one. */
  needsCoordinator?: (transfer: number) => boolean;
}

/**
 * Rounds of one transfer before prompts wait, and as many again before the refactoring is given up. Lower: gives up
 * where a slow link would have come to an end; higher: copies for longer what is written again at once.
 */
const rounds_max = 8;

interface Transfer extends KvTransfer {
  mask: CopyMask;
  rounds: number;
  /** The rows of the round under way. */
  copying: ReturnType<CopyMask['missing']> | undefined;
  /** Its source is gone: nothing more comes. */
  sourceLost: boolean;
}

/**
 * One change of a pipeline's layout while tokens flow (FlexPipe §6.3, Fig. 6b), seen from the coordinator. Every event
 * is answered with what is to be done; effects, time and messages are the caller's. As long as not every stage has
 * begun the new epoch, all that the old layout needs is there, so that any failure leads back to it; where one of its
 * own devices is what was lost, the way is forward, with the rows of KV that came across.
 */
export class Refactoring {
  #phase: RefactoringPhase = 'preparing';
  #epoch: number;
  readonly #from: PipelineLayout;
  readonly #to: PipelineLayout;
  readonly #change: LayoutChange;
  readonly #transfers: Transfer[];
  readonly #running: () => number;
  readonly #needsCoordinator: (transfer: number) => boolean;
  readonly #preparing: Set<string>;
  readonly #lost = new Set<string>();
  #prefillHeld = false;
  #because = '';

  /** @throws RangeError: see `planLayoutChange` */
  constructor({
    from,
    to,
    epoch,
    hasKv,
    filled,
    running,
    needsCoordinator = () => false,
  }: RefactoringRequest) {
    this.#from = from;
    this.#to = to;
    this.#epoch = epoch;
    this.#running = running;
    this.#needsCoordinator = needsCoordinator;
    this.#change = planLayoutChange(from, to);
    const blocks = [...filled];
    this.#transfers = this.#change.transfers
      .filter((transfer) => hasKv(transfer))
      .map((transfer) => ({
        ...transfer,
        mask: new CopyMask(blocks),
        rounds: 0,
        copying: undefined,
        sourceLost: false,
      }));
    this.#preparing = new Set(to.map(({ device }) => device));
  }

  get phase(): RefactoringPhase {
    return this.#phase;
  }

  /** Epoch of the layout that computes, or is about to. */
  get epoch(): number {
    return this.#epoch;
  }

  /** To give it up would lose the pipeline: a device of the old layout is gone, or it is on its way back already. */
  get mustGoOn(): boolean {
    return this.#phase === 'returning' || this.#from.some(({ device }) => this.#lost.has(device));
  }

  get transfers(): readonly (KvTransfer & { mask: CopyMask })[] {
    return this.#transfers;
  }

  /** Rows are under way that come only while the coordinator goes on: it is not to stop for them. */
  get needsCoordinator(): boolean {
    return this.#transfers.some(
      ({ copying }, index) => copying !== undefined && this.#needsCoordinator(index),
    );
  }

  start(): RefactoringAction[] {
    return this.#to.map(({ device, begin, end }) => ({
      do: 'prepare',
      device,
      stage: { begin, end },
      loads: this.#change.loads.find((load) => load.device === device)?.ranges ?? [],
    }));
  }

  /**
   * A batch that was submitted writes these rows. A target whose source is lost does not have them either: what it has
   * of the block is of something else.
   */
  wrote(block: number, begin: number, end: number): void {
    for (const { mask } of this.#transfers) mask.wrote(block, begin, end);
  }

  freed(block: number): void {
    for (const { mask } of this.#transfers) mask.freed(block);
  }

  handle(event: RefactoringEvent): RefactoringAction[] {
    if (this.#phase === 'done') return [];
    switch (event.kind) {
      case 'prepared':
        return this.#prepared(event.device);
      case 'refused':
        return this.#giveUp(`${event.device}: ${event.because}`);
      case 'copied':
        return this.#copied(event.transfer, event.round);
      case 'copy_failed':
        return this.#copyFailed(event.transfer, event.because);
      case 'drained':
        return this.#phase === 'pausing' ? this.#cut() : [];
      case 'begun':
        return this.#begun(event.epoch);
      case 'lost':
        return this.#deviceLost(event.device, event.because);
      case 'cancelled':
        return this.#giveUp(event.because);
      case 'deadline':
        return event.phase === this.#phase ? this.#giveUp(`${event.phase} took longer than it may`) : [];
    }
  }

  #prepared(device: string): RefactoringAction[] {
    if (this.#phase !== 'preparing' || !this.#preparing.delete(device)) return [];
    if (this.#preparing.size > 0) return [];
    this.#phase = 'copying';
    const actions = this.#transfers.flatMap((_, index) => this.#round(index));
    return actions.length > 0 ? actions : this.#pause();
  }

  #copied(index: number, round: number): RefactoringAction[] {
    const transfer = this.#transfers[index]!;
    if (transfer.copying === undefined || transfer.rounds !== round) return [];
    transfer.mask.copied(transfer.copying);
    transfer.copying = undefined;
    if (this.#phase === 'cutting') return this.#finishCut();
    if (this.#phase !== 'copying') return [];
    if (this.#transfers.every((each) => this.#isNear(each)))
      return this.needsCoordinator ? [] : this.#pause();
    const actions = this.#keepUp(transfer);
    if (this.#phase !== 'copying') return actions;
    const behind = this.#transfers.flatMap((each, other) =>
      other === index || !this.#isNear(each) ? this.#round(other) : [],
    );
    return [...actions, ...behind];
  }

  /** Rows that are written as fast as they are copied: prompts wait first, then it is given up. */
  #keepUp(transfer: Transfer): RefactoringAction[] {
    if (this.#isNear(transfer) || transfer.rounds < rounds_max) return [];
    if (transfer.rounds >= 2 * rounds_max)
      return this.#giveUp(`KV is written faster than it is copied from ${transfer.from} to ${transfer.to}`);
    if (this.#prefillHeld) return [];
    this.#prefillHeld = true;
    return [{ do: 'hold_prefill' }];
  }

  /** What is left and what is under way are at most one block a sequence: that is what the pause waits for. */
  #isNear({ mask, copying, sourceLost }: Transfer): boolean {
    if (sourceLost) return true;
    // A block under way may be of a sequence that has ended since: nobody lacks it, and its round is waited for.
    const blocks = new Set([...mask.missing(), ...(copying ?? [])].map(({ block }) => block));
    return blocks.size <= this.#running();
  }

  /** The next round of a transfer; none where the target has everything, until more is written. */
  #round(index: number): RefactoringAction[] {
    const transfer = this.#transfers[index]!;
    if (transfer.copying || transfer.sourceLost) return [];
    const rows = transfer.mask.missing();
    if (rows.length === 0) return [];
    transfer.copying = rows;
    return [{ do: 'copy', transfer: index, round: ++transfer.rounds, rows }];
  }

  /** What is left is asked for behind the last batches, so that it comes while their results do. */
  #pause(): RefactoringAction[] {
    this.#phase = 'pausing';
    return [{ do: 'pause' }, ...this.#transfers.flatMap((_, index) => this.#round(index))];
  }

  #cut(): RefactoringAction[] {
    this.#phase = 'cutting';
    return this.#finishCut();
  }

  /** Copies what the rounds left; begins once every target has every row that there is. */
  #finishCut(): RefactoringAction[] {
    const copies = this.#transfers.flatMap((_, index) => this.#round(index));
    if (copies.length > 0 || this.#transfers.some(({ copying }) => copying)) return copies;
    this.#phase = 'starting';
    this.#epoch++;
    return [{ do: 'begin', layout: this.#to, epoch: this.#epoch }];
  }

  #begun(epoch: number): RefactoringAction[] {
    if (epoch !== this.#epoch) return [];
    if (this.#phase === 'starting') {
      const incomplete = this.#transfers.flatMap(({ sourceLost }, index) => (sourceLost ? [index] : []));
      return this.#end({ kind: 'refactored', epoch, incomplete }, this.#to, this.#change.releases);
    }
    if (this.#phase === 'returning')
      return this.#end({ kind: 'kept', epoch, because: this.#because }, this.#from, this.#change.loads);
    return [];
  }

  #copyFailed(index: number, because: string): RefactoringAction[] {
    const { copying, from, to, sourceLost } = this.#transfers[index]!;
    if (!copying || sourceLost) return [];
    return this.#giveUp(`KV from ${from} to ${to}: ${because}`);
  }

  #deviceLost(device: string, because: string): RefactoringAction[] {
    this.#lost.add(device);
    const inOld = this.#from.some((stage) => stage.device === device);
    const inNew = this.#to.some((stage) => stage.device === device);
    const why = `${device} is lost: ${because}`;
    if (!inOld && !inNew) return [];
    if (this.#phase === 'returning') return inOld ? this.#loseAll(why) : [];
    if (this.#phase === 'starting') return inNew ? (inOld ? this.#loseAll(why) : this.#return(why)) : [];
    if (!inOld) return this.#giveUp(why);
    // The old pipeline cannot compute any more; the new one can, if all of it is ready.
    if (inNew || this.#phase === 'preparing') return this.#loseAll(why);
    return this.#forward(device);
  }

  /** Without the rows that only the lost device had; the other sources still give theirs. */
  #forward(device: string): RefactoringAction[] {
    for (const transfer of this.#transfers)
      if (transfer.from === device) {
        transfer.sourceLost = true;
        transfer.copying = undefined;
      }
    if (this.#phase === 'cutting') return this.#finishCut();
    const wasCopying = this.#phase === 'copying';
    // Nothing is under way in a pipeline that is broken: `drained` says that the coordinator has dropped it.
    this.#phase = 'pausing';
    return wasCopying ? [{ do: 'pause' }] : [];
  }

  /** Back to the old layout, which is whole: at once where it never stopped being the one. */
  #giveUp(because: string): RefactoringAction[] {
    if (this.#phase === 'starting') return this.#return(because);
    if (this.#phase === 'returning') return this.#loseAll(because);
    if (this.#from.some(({ device }) => this.#lost.has(device))) return this.#loseAll(because);
    const resume: RefactoringAction[] =
      this.#phase === 'preparing' || (this.#phase === 'copying' && !this.#prefillHeld)
        ? []
        : [{ do: 'resume' }];
    const kept = { kind: 'kept', epoch: this.#epoch, because } as const;
    return [...resume, ...this.#end(kept, this.#from, this.#change.loads)];
  }

  #return(because: string): RefactoringAction[] {
    if (this.#from.some(({ device }) => this.#lost.has(device))) return this.#loseAll(because);
    this.#because = because;
    this.#phase = 'returning';
    this.#epoch++;
    return [{ do: 'begin', layout: this.#from, epoch: this.#epoch }];
  }

  #loseAll(because: string): RefactoringAction[] {
    this.#phase = 'done';
    const devices = new Set([...this.#from, ...this.#to].map(({ device }) => device));
    return [
      ...[...devices]
        .filter((device) => !this.#lost.has(device))
        .map((device) => ({ do: 'release', device, keeps: undefined }) as const),
      { do: 'end', outcome: { kind: 'lost', because } },
    ];
  }

  #end(
    outcome: RefactoringOutcome,
    serving: PipelineLayout,
    spare: LayoutChange['loads'],
  ): RefactoringAction[] {
    this.#phase = 'done';
    const actions: RefactoringAction[] = [];
    // A device that loads nothing may have reserved memory for the KV of its new stage.
    const devices = new Set([
      ...spare.map(({ device }) => device),
      ...(outcome.kind === 'kept' ? this.#to : this.#from).map(({ device }) => device),
    ]);
    for (const device of devices) {
      if (this.#lost.has(device)) continue;
      const stage = serving.find((each) => each.device === device);
      const keeps = stage && { begin: stage.begin, end: stage.end };
      actions.push({ do: 'release', device, keeps });
    }
    return [...actions, { do: 'end', outcome }];
  }
}
