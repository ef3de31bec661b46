/** Who may wait at a gateway for a replica that starts: the rule alone, over any order of keys that come and go. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type NoPlace,
  noPlaceFor,
  type WaitingPlace,
  WaitingRoom,
} from '../../../gateway/relay/waiting-room.ts';

const places = 1024;

/** Asks until it gets no place any more. */
function takeAll(room: WaitingRoom, key: string): { held: WaitingPlace[]; refused: NoPlace } {
  const held: WaitingPlace[] = [];
  for (;;) {
    const place = room.enter(key);
    if (typeof place === 'string') return { held, refused: place };
    held.push(place);
  }
}

describe('places to wait', () => {
  it('of one key alone are three quarters of the room', () => {
    const room = new WaitingRoom(places);
    const { held, refused } = takeAll(room, 'attacker');
    expect(held).toHaveLength(768);
    expect(refused).toBe('key');
    expect(room.refusal(refused, 'attacker', ['it loads']).toText()).toContain(
      '768 requests of this key wait for replicas that start',
    );
  });

  it('are left for a key that comes after one that took all it could', () => {
    const room = new WaitingRoom(places);
    takeAll(room, 'attacker');
    expect(takeAll(room, 'honest').held.length).toBeGreaterThan(150);
  });

  it('are left for 64 keys more, however many took all they could', () => {
    const room = new WaitingRoom(places);
    for (let key = 0; key < 10; key++) takeAll(room, `attacker ${key}`);
    for (let key = 0; key < 50; key++) expect(typeof room.enter(`honest ${key}`)).toBe('object');
  });

  it('come back to their key', () => {
    const room = new WaitingRoom(places);
    const { held } = takeAll(room, 'a');
    for (const place of held.slice(1)) place.leave();
    expect([room.held('a'), room.free]).toEqual([1, places - 1]);
    expect(takeAll(room, 'a').held).toHaveLength(767);
  });

  it('are said to be taken where none is free', () => {
    expect(noPlaceFor({ places: 4, free: 0, held: 0 })).toBe('room');
    expect(new WaitingRoom(0).refusal('room', 'a', []).code).toBe('E_GATEWAY_WAITING');
  });

  it('go to every key that holds none while one is free, and to none beyond its share', () => {
    const steps = fc.array(fc.record({ key: fc.nat(6), leaves: fc.boolean() }), { maxLength: 300 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 64 }), steps, (count, order) => {
        const room = new WaitingRoom(count);
        const held = new Map<string, WaitingPlace[]>();
        for (const { key, leaves } of order) {
          const own = held.get(`${key}`) ?? [];
          held.set(`${key}`, own);
          if (leaves) {
            own.pop()?.leave();
            continue;
          }
          const { free } = room;
          const place = room.enter(`${key}`);
          if (typeof place === 'string') expect(free === 0 || own.length > 0).toBe(true);
          else own.push(place);
          if (own.length > 1 && typeof place !== 'string') expect(own.length).toBeLessThanOrEqual(4 * free);
        }
        const taken = [...held.values()].reduce((sum, own) => sum + own.length, 0);
        expect(room.free).toBe(count - taken);
        for (const [key, own] of held) expect(room.held(key)).toBe(own.length);
      }),
    );
  });
});
