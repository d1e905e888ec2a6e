use std::sync::mpsc;

use flower_store::RealDisk;

use super::*;

fn workers(count: u32, queue: usize) -> (Workers, Env, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real(Arc::new(RealDisk::open(dir.path()).unwrap())).unwrap();
    let limits = Limits {
        wall_ms: 50,
        ..Limits::default()
    };
    (Workers::new(&env, limits, count, queue), env, dir)
}

fn late(env: &Env) -> Mono {
    env.clock.mono() + Duration::from_secs(60)
}

/// A job that ignores its deadline until it is released.
fn deaf(
    bundle: &'static str,
) -> (
    impl FnOnce(&mut Isolates, &Deadline) + Send + 'static,
    mpsc::Sender<()>,
) {
    let (release, released) = mpsc::channel::<()>();
    let job = move |isolates: &mut Isolates, _: &Deadline| {
        *isolates.desk.bundle.lock() = Some(bundle.to_owned());
        let _ = released.recv();
    };
    (job, release)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_heeds_its_deadline_costs_no_thread() {
    let (workers, env, _dir) = workers(2, 8);
    let spin = |_: &mut Isolates, deadline: &Deadline| {
        while !deadline.passed() {
            std::thread::yield_now();
        }
    };
    let run = workers.run(Purpose::Query, None, late(&env), spin);
    let problem = run.await.unwrap_err();
    assert_eq!((problem.status, &problem.code[..]), (500, "budget"));
    assert_eq!(problem.setting.as_deref(), Some("FLOWER_LIMIT_WALL_MS"));
    let next = workers.run(Purpose::Query, None, late(&env), |_, _| 7);
    assert_eq!(next.await.unwrap(), 7);
    assert_eq!((workers.stuck(), env.lanes.abandoned()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_a_bundle_may_take_longer_and_its_refusal_says_so() {
    let (workers, env, _dir) = workers(2, 8);
    let begun = std::time::Instant::now();
    let spin = |_: &mut Isolates, deadline: &Deadline| {
        while !deadline.passed() {
            std::thread::yield_now();
        }
    };
    let problem = workers.load(late(&env), spin).await.unwrap_err();
    // Never sooner, however slow the machine is.
    assert!(begun.elapsed() >= Duration::from_millis(10 * 50));
    assert_eq!((problem.status, &problem.code[..]), (422, "bad-bundle"));
    assert!(
        problem
            .detail
            .contains("loading the bundle took longer than 500 ms"),
        "{problem}"
    );
    assert_eq!(problem.setting.as_deref(), Some("FLOWER_LIMIT_WALL_MS"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_thread_is_replaced_and_its_bundle_gets_one_worker() {
    let (workers, env, _dir) = workers(3, 8);
    let (job, release) = deaf("hostile");
    let run = workers.run(Purpose::Query, Some("hostile"), late(&env), job);
    assert_eq!(
        run.await.unwrap_err().code,
        "budget",
        "answered at the limit"
    );
    while workers.stuck() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(env.lanes.abandoned(), 1);
    // Both query workers run others; of the hostile bundle one call at a time.
    let (first, second) = (deaf("hostile"), deaf("hostile"));
    let (one, two) = (workers.clone(), workers.clone());
    let end = late(&env);
    let one =
        tokio::spawn(async move { one.run(Purpose::Query, Some("hostile"), end, first.0).await });
    while workers.0.penalty.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let soon = env.clock.mono() + Duration::from_millis(10);
    let waits = two
        .run(Purpose::Query, Some("hostile"), soon, second.0)
        .await;
    let waits = waits.unwrap_err();
    assert_eq!((waits.status, &waits.code[..]), (504, "timeout"));
    assert_eq!(waits.setting.as_deref(), Some("FLOWER_WORKERS"));
    let other = workers.run(Purpose::Query, Some("good"), late(&env), |_, _| 1);
    assert_eq!(other.await.unwrap(), 1);
    drop((release, first.1, second.1));
    let _ = one.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_workers_stuck_is_told() {
    let (workers, env, _dir) = workers(3, 8);
    let mut held = Vec::new();
    for _ in 0..2 {
        let (job, release) = deaf("hostile");
        held.push(release);
        let run = workers.run(Purpose::Query, None, late(&env), job);
        assert_eq!(run.await.unwrap_err().code, "budget");
    }
    workers.exhausted().await;
    assert_eq!(workers.stuck(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_is_bounded_and_a_panic_costs_only_its_call() {
    let (workers, env, _dir) = workers(2, 0);
    let (begun, is_begun) = mpsc::channel();
    let busy = workers.clone();
    let end = late(&env);
    let hold = tokio::spawn(async move {
        let spin = move |_: &mut Isolates, deadline: &Deadline| {
            begun.send(()).unwrap();
            while !deadline.passed() {
                std::thread::yield_now();
            }
        };
        busy.run(Purpose::Query, None, end, spin).await
    });
    is_begun.recv().unwrap();
    let crowd = workers.run(Purpose::Query, None, end, |_, _| ()).await;
    let problem = crowd.unwrap_err();
    assert_eq!((problem.status, &problem.code[..]), (429, "overloaded"));
    // Mutations have a worker of their own.
    let mutation = workers.run(Purpose::Mutation, None, end, |_, _| 2).await;
    assert_eq!(mutation.unwrap(), 2);
    let panics = workers.run(Purpose::Mutation, None, end, |_, _| -> () {
        panic!("on purpose")
    });
    assert_eq!(panics.await.unwrap_err().code, "internal");
    let after = workers.run(Purpose::Mutation, None, end, |_, _| 3).await;
    assert_eq!(after.unwrap(), 3);
    hold.await.unwrap().unwrap_err();
}
