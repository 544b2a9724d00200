// What a screen asks, kept fresh while it is shown.

import { useCallback, useEffect, useRef, useState } from './view.js';
import { ask, Problem } from './ask.js';
import { follow, onReset, watch } from './live.js';

/** At most so often is something asked anew because of what happened. */
const AGAIN = 400;

/**
 * An answer that is asked anew when one of the topics says that something happened.
 * @param {string | null} path none asks nothing
 * @param {{topics?: string[], every?: number}} [when]
 * @returns {{is: any, problem: Problem | null, at: number, again: () => void}}
 */
export function useAnswer(path, { topics = [], every = 0 } = {}) {
  const [answer, setAnswer] = useState(
    /** @type {{path: string | null, is: any, problem: Problem | null, at: number}} */
    ({ path: null, is: null, problem: null, at: 0 }),
  );
  const wanted = useRef(path);
  wanted.current = path;
  const pending = useRef(0);
  const isAsking = useRef(false);
  const isStale = useRef(false);

  const again = useCallback(async () => {
    clearTimeout(pending.current);
    pending.current = 0;
    const asked = wanted.current;
    if (asked == null) return;
    if (isAsking.current) {
      isStale.current = true;
      return;
    }
    isAsking.current = true;
    try {
      const is = await ask(asked);
      if (wanted.current === asked) setAnswer({ path: asked, is, problem: null, at: Date.now() });
    } catch (error) {
      const problem = /** @type {Problem} */ (error);
      if (wanted.current === asked) {
        setAnswer((before) => ({ ...before, path: asked, problem,
          is: before.path === asked ? before.is : null }));
      }
    }
    isAsking.current = false;
    if (isStale.current || wanted.current !== asked) {
      isStale.current = false;
      again();
    }
  }, []);
  const soon = useCallback(() => {
    if (!pending.current) pending.current = window.setTimeout(again, AGAIN);
  }, []);

  useEffect(() => {
    again();
    const ends = topics.map((topic) => follow(topic, soon));
    ends.push(onReset(soon));
    const timer = every > 0 ? setInterval(() => document.hidden || again(), every) : 0;
    return () => {
      ends.forEach((end) => end());
      clearInterval(timer);
      clearTimeout(pending.current);
      pending.current = 0;
    };
  }, [path, topics.join(), every]);

  const isOfPath = answer.path === path;
  return {
    is: isOfPath ? answer.is : null,
    problem: isOfPath ? answer.problem : null,
    at: answer.at,
    again,
  };
}

/** What was told last under a topic that holds the whole. @param {string | null} topic */
export function useTopic(topic) {
  const [told, setTold] = useState(/** @type {{topic: string | null, is: any}} */
    ({ topic: null, is: null }));
  useEffect(() => (topic ? follow(topic, (is) => setTold({ topic, is })) : undefined), [topic]);
  return told.topic === topic ? told.is : null;
}

/** How the market and the way to it are. */
export function useStanding() {
  const [standing, setStanding] = useState(/** @type {any} */ (null));
  useEffect(() => watch(setStanding), []);
  return standing;
}

/** The providers by account, for their names. */
export function useNames() {
  const { is } = useAnswer('/v1/providers?limit=1000', { every: 30_000 });
  /** @type {Map<string, any>} */
  const names = new Map();
  for (const provider of is?.items ?? []) names.set(provider.account, provider);
  return names;
}

/** Something that can be done once at a time, and what came of it. @param {() => Promise<any>} act */
export function useAction(act) {
  const [state, setState] = useState(/** @type {{isBusy: boolean, problem: Problem | null}} */
    ({ isBusy: false, problem: null }));
  const run = async () => {
    if (state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      await act();
      setState({ isBusy: false, problem: null });
    } catch (error) {
      setState({ isBusy: false, problem: /** @type {Problem} */ (error) });
    }
  };
  return { ...state, run };
}
