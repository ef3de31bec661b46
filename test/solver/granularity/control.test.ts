import { describe, expect, it } from 'vitest';
import { kv_bytes, opt66b, passes_mean } from '../../../bench/bursts/opt-66b.ts';
import {
  decideGranularity,
  type GranularityDecision,
  type GranularityQuestion,
  granularity_settings,
} from '../../../solver/granularity/control.ts';
import { fragmentedCluster } from '../../../solver/pipeline-simulator/fragments.ts';
import { adaptivePolicy } from '../../../solver/pipeline-simulator/policies.ts';
import { servePipelines } from '../../../solver/pipeline-simulator/serving.ts';
import {
  drawGammaArrivals,
  drawSurges,
  type PipelineRequest,
} from '../../../solver/pipeline-simulator/surges.ts';

const settings = granularity_settings;

function ask(facts: Partial<GranularityQuestion> = {}, rate_per_s = 20, cv = 1): GranularityQuestion {
  return {
    now_ms: 1_000_000,
    options: opt66b.map((granularity) => ({ granularity, devices_max: 40, load_s: granularity.load_s })),
    current: { stages: 4, instances: 1 },
    changing: false,
    arrivals: {
      windows: [],
      rate_per_s,
      rate_peak_per_s: rate_per_s,
      peak_seen: true,
      cv,
      gradient_per_s2: 0,
    },
    passes_per_request: passes_mean,
    waiting_requests: 0,
    waiting_max: 128,
    stalled: false,
    deadline_s: 4,
    settings,
    ...facts,
  };
}

/** Asks as often as a second has ticks, until something changes or the time is up. */
function askFor(seconds: number, facts: GranularityQuestion): GranularityDecision & { after_ms: number } {
  let question = facts;
  for (let after_ms = 0; ; after_ms += 250) {
    const decision = decideGranularity({ ...question, now_ms: facts.now_ms + after_ms });
    if (decision.action !== 'keep' || after_ms >= 1000 * seconds) return { ...decision, after_ms };
    question = { ...question, memory: decision.memory };
  }
}

describe('the decision on granularity', () => {
  it('keeps coarse pipelines under an even load', () => {
    expect(askFor(300, ask()).action).toBe('keep');
  });

  it('refines for a load that the pipeline does not carry, once it has lasted, and says why', () => {
    const decision = askFor(10, ask({ waiting_requests: 100 }, 100, 6));
    expect(decision).toMatchObject({ action: 'refine', after_ms: settings.refine_hold_ms });
    expect(decision.fleet.stages).toBeGreaterThanOrEqual(16);
    expect(decision.because).toMatch(
      /^134\.0 requests\/s wanted, CV 6\.0, 100 waiting: 1 × \d+ stages in place of 1 × 4 stages/,
    );
  });

  it('does not wait when answers stall already', () => {
    expect(askFor(10, ask({ waiting_requests: 100, stalled: true }, 100, 6)).after_ms).toBe(0);
  });

  it('starts finer the longer the queue is (Eq. 11), and within the devices that there are', () => {
    const stages = (waiting_requests: number, devices_max = 40): number => {
      const { options } = ask();
      const narrow = options.map((option) => ({ ...option, devices_max }));
      return askFor(10, ask({ waiting_requests, options: narrow }, 100, 8)).fleet.stages;
    };
    expect(stages(200)).toBe(32);
    expect(stages(10)).toBeLessThan(32);
    expect(stages(200, 16)).toBe(16);
  });

  it('looks ahead along the gradient', () => {
    const { arrivals } = ask({}, 50, 2);
    expect(askFor(5, ask({ arrivals })).action).toBe('keep');
    expect(askFor(5, ask({ arrivals: { ...arrivals, gradient_per_s2: 10 } })).action).not.toBe('keep');
  });

  it('consolidates to what carries the peak of late, and not before it was seen', () => {
    const current = { stages: 16, instances: 1 };
    const fine = ask({ current }, 10, 1);
    const decision = askFor(120, fine);
    expect(decision).toMatchObject({
      action: 'consolidate',
      fleet: { stages: 4, instances: 1 },
      after_ms: settings.consolidate_hold_ms,
    });
    const peak = { ...fine, arrivals: { ...fine.arrivals, rate_peak_per_s: 150 } };
    expect(askFor(120, peak).fleet).toEqual({ stages: 4, instances: 3 });
    expect(askFor(120, { ...fine, arrivals: { ...fine.arrivals, peak_seen: false } }).action).toBe('keep');
  });

  it('waits twice as long to consolidate when the last time was taken back', () => {
    const memory = {
      consolidate_hold_ms: 60_000,
      changed: { at_ms: 990_000, consolidated: true },
    };
    const back = askFor(10, ask({ waiting_requests: 100, memory }, 100, 6));
    expect(back.memory.consolidate_hold_ms).toBe(120_000);
    const late = { ...memory, changed: { at_ms: 0, consolidated: true }, consolidate_hold_ms: 240_000 };
    expect(askFor(10, ask({ waiting_requests: 100, memory: late }, 100, 6)).memory.consolidate_hold_ms).toBe(
      120_000,
    );
  });

  it('decides nothing while a change is under way', () => {
    expect(decideGranularity(ask({ changing: true, waiting_requests: 500 }, 200, 8)).action).toBe('keep');
  });
});

describe('under a load', () => {
  const cluster = fragmentedCluster({ servers: 42, devices: 82, memory_bytes: 80e9, seed: 1 });
  /** Whether each change took devices or gave them back. */
  const changesOf = (requests: readonly PipelineRequest[]): ('more' | 'fewer')[] => {
    const devices = [4];
    const policy = adaptivePolicy({
      settings,
      first: { stages: 4, instances: 1 },
      always_on_devices: 4,
      passes_per_request: passes_mean,
      deadline_s: 4,
      on_change: (_, because) => {
        const [, instances, stages] = /: (\d+) × (\d+) stages in/.exec(because)!;
        devices.push(Number(instances) * Number(stages));
      },
    });
    servePipelines(requests, policy, {
      profile: opt66b,
      cluster,
      tick_ms: 250,
      cutover_ms: 5,
      kv_bytes,
      kv_bytes_per_s: 12.5e9,
    });
    return devices.slice(1).map((count, index) => (count > devices[index]! ? 'more' : 'fewer'));
  };

  it('does not oscillate while arrivals stay the same, however bursty, by every seed', () => {
    for (const cv of [0.5, 1, 4])
      for (let seed = 1; seed <= 3; seed++) {
        const steady = { rate_per_s: 20, cv, requests: 5000, passes_mean, seed };
        const changes = changesOf(drawGammaArrivals(steady));
        // To a finer pipeline once, where arrivals are bursty, and not back.
        expect(changes.length, `CV ${cv}, seed ${seed}: ${changes}`).toBeLessThanOrEqual(cv <= 2 ? 0 : 1);
      }
  });

  it('settles under bursts that chance makes larger and smaller', () => {
    for (const seed of [1, 2]) {
      const changes = changesOf(
        drawGammaArrivals({ rate_per_s: 20, cv: 8, requests: 12_000, passes_mean, seed }),
      );
      const back = changes.filter((change, index) => index > 0 && change !== changes[index - 1]);
      expect(back.length, changes.join(', ')).toBeLessThanOrEqual(2);
    }
  });

  it('follows surges', () => {
    const requests = drawSurges({ rate_per_s: 20, cv: 8, requests: 6000, surge_s: 10, passes_mean, seed: 5 });
    expect(changesOf(requests).length).toBeGreaterThan(0);
  });
});

describe('a stage that holds up the others', () => {
  const congested = [{ stage: 2, backlog_s: 0.4, because: '4 micro-batches wait before stage 2' }];

  it('has its pipeline cut anew when that lasts and another cut is faster, once', () => {
    const question = ask({ congested, uneven: true });
    const decision = askFor(120, question);
    expect(decision).toMatchObject({
      action: 'recut',
      fleet: question.current,
      after_ms: settings.recut_hold_ms,
      because: '4 micro-batches wait before stage 2: cut anew by what stages take',
    });
    // What follows is watched as long again.
    const next = decideGranularity({ ...question, memory: decision.memory });
    expect(next.action).toBe('keep');
    expect(next.because).toMatch(/wait before stage 2: cut anew if that lasts for 60\.0 s$/);
  });

  it('is not waited for in a stall', () => {
    const question = ask({ congested, uneven: true, stalled: true });
    const { after_ms, action, memory } = askFor(120, question);
    expect([action, after_ms]).toEqual(['recut', 0]);
    // Not again before anything is measured of the new cut.
    const next = askFor(120, { ...question, memory });
    expect([next.action, next.after_ms]).toEqual(['recut', settings.recut_hold_ms]);
  });

  it('is only said where no other cut is faster, and a queue that went and came counts anew', () => {
    const even = askFor(120, ask({ congested }));
    expect(even.action).toBe('keep');
    expect(even.because).toMatch(/wait before stage 2, and no other cut is known to be faster$/);
    let memory: GranularityQuestion['memory'];
    for (let second = 0; second < 300; second++) {
      const now_ms = 1_000_000 + 1000 * second;
      const queue = second % 50 === 0 ? [] : congested;
      const decision = decideGranularity({ ...ask({ congested: queue, uneven: true }), now_ms, memory });
      expect(decision.action).toBe('keep');
      memory = decision.memory;
    }
  });

  it('is none of a pipeline that is to have more stages anyway', () => {
    const decision = askFor(10, ask({ waiting_requests: 100, congested, uneven: true }, 100, 6));
    expect(decision.action).toBe('refine');
  });
});
