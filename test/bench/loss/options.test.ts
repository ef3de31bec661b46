import { describe, expect, it } from 'vitest';
import { readLossOptions } from '../../../bench/loss/options.ts';

describe('npm run bench -- loss', () => {
  it('loses an engine in each way, or in those that are named', () => {
    const all = ['SIGSTOP', 'network cut', 'SIGKILL', 'scancel'];
    const behind = ['hpcserve', 'vllm-router', 'sglang-router', 'smg'];
    expect(readLossOptions([])).toEqual({ losses: all, streams: 6, tokens: 1500, behind });
    expect(readLossOptions(['--behind', 'smg', '--behind', 'hpcserve']).behind).toEqual(['hpcserve', 'smg']);
    const some = ['--loss', 'SIGKILL', '--loss', 'SIGSTOP', '--streams', '4', '--tokens', '800'];
    expect(readLossOptions(some)).toMatchObject({ losses: ['SIGSTOP', 'SIGKILL'], streams: 4, tokens: 800 });
  });

  it.each([
    [['--loss', 'fire'], 'unknown loss fire; there are SIGSTOP, network cut'],
    [['--loss', 'nothing'], 'unknown loss nothing'],
    [['--behind', 'nginx'], 'unknown system nginx; there are hpcserve, vllm-router'],
    [['--streams', '1'], '--streams is a whole number from 2 to 8, not 1'],
    [['--tokens', '5000'], '--tokens is a whole number from 2 to 1900, not 5000'],
    [['SIGKILL'], 'SIGKILL'],
  ])('refuses %j', (args, why) => {
    expect(() => readLossOptions(args)).toThrow(why);
  });
});
