import { describe, expect, it } from 'vitest';
import { partNames, readRoutersOptions } from '../../../bench/routers/options.ts';
import { routerCommand } from '../../../bench/routers/peers.ts';

describe('npm run bench -- routers', () => {
  it('measures all parts, or those that are named, in an order of its own', () => {
    expect(readRoutersOptions([])).toEqual({ parts: partNames, rounds: 5 });
    expect(readRoutersOptions(['latency', 'requests', '--rounds', '2'])).toEqual({
      parts: ['requests', 'latency'],
      rounds: 2,
    });
  });

  it.each([
    [['speed'], 'unknown part speed'],
    [['--rounds', '0'], '--rounds is a whole number from 1, not 0'],
    [['--rounds', 'x'], '--rounds is a whole number from 1, not x'],
    [['--fast'], '--fast'],
  ])('refuses %j', (args, why) => {
    expect(() => readRoutersOptions(args)).toThrow(why);
  });

  it.each(['vllm-router', 'sglang-router', 'smg'] as const)('starts %s on loopback alone', (name) => {
    const workers = ['http://127.0.0.1:1', 'http://127.0.0.1:2'];
    const command = routerCommand(name, '/bin-of-it', { workers, port: 3, metrics_port: 4 });
    expect(command[0]).toMatch(/^\/bin-of-it\//);
    const argumentOf = (option: string): string | undefined => command[command.indexOf(option) + 1];
    expect([argumentOf('--host'), argumentOf('--prometheus-host')]).toEqual(['127.0.0.1', '127.0.0.1']);
    expect([argumentOf('--port'), argumentOf('--prometheus-port')]).toEqual(['3', '4']);
    expect(command.slice(command.indexOf('--worker-urls') + 1).slice(0, 2)).toEqual(workers);
    expect(command).not.toContain('--api-key');
    const asked = routerCommand(name, '/', { workers, port: 3, metrics_port: 4, worker_key: 'of-workers' });
    expect(asked[asked.indexOf('--api-key') + 1]).toBe('of-workers');
  });
});
